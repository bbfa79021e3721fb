package main

import (
	"context"
	"errors"
	"slices"
	"strings"

	"flannel/pkg/winservice"
)

// serviceAnswer is the JSON document of service.
type serviceAnswer struct {
	Said    []string `json:"said"` // the lines that it prints without --json
	Problem string   `json:"problem,omitempty"`
}

// service is the command service, which creates and controls the Windows
// service. Its verbs have flags of their own.
func service(ctx context.Context, c *call) int {
	var said strings.Builder
	args, asJSON := withoutJSON(c.Args)
	out := c.stdout
	if c.json = asJSON; asJSON {
		out = &said
	}
	err := winservice.Command(ctx, args, parseServiceOptions, c.log, out)
	if wrong := (winservice.UsageError{}); errors.As(err, &wrong) {
		return c.reportUsage(err)
	}
	return c.answer(serviceAnswer{append([]string{}, strings.FieldsFunc(said.String(), func(r rune) bool { return r == '\n' })...), problem(err)}, "", err)
}

// parseServiceOptions validates the flags and variables that the service passes
// to the daemon. It sees the variables of --env alone: those of this process
// are not passed on.
func parseServiceOptions(args, env []string) (winservice.Daemon, error) {
	o, err := parseOptions(args, env)
	problems := []error{err}
	if o.Command != "" || o.Help || o.Version {
		problems = append(problems, errors.New("only flags of the daemon may follow --, no command"))
	}
	if o.Kube.On && o.Kube.NodeName == "" && (o.Kube.PodName == "" || o.Kube.PodNamespace == "") {
		problems = append(problems, errors.New("--kube-subnet-mgr requires the node's name: add --env NODE_NAME=… before --"))
	}
	return winservice.Daemon{Files: o.files(), LogFile: o.Logging.File}, errors.Join(problems...)
}

// files returns all file names in the options.
func (o *options) files() []string {
	all := append([]string{o.Logging.File, o.SubnetFile, o.Etcd.CAFile, o.Etcd.CertFile, o.Etcd.KeyFile, o.Kube.Kubeconfig, o.Kube.NetConfPath,
		o.CNI.ConfFrom, o.CNI.ConfTo, o.CNI.PluginFrom, o.CNI.PluginTo}, o.Kube.APIFrom...)
	return slices.DeleteFunc(all, func(f string) bool { return f == "" })
}
