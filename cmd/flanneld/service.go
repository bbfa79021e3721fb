package main

import (
	"context"
	"errors"
	"slices"
	"strings"

	"flannel/pkg/winservice"
)

// serviced is what service answers with --json.
type serviced struct {
	Said    []string `json:"said"` // line by line what it says without
	Problem string   `json:"problem,omitempty"`
}

// service is the command that makes and controls the Windows service. Its verbs have flags of their own.
func service(ctx context.Context, c *call) int {
	var said strings.Builder
	args, asJSON := withoutJSON(c.Args)
	out := c.stdout
	if c.json = asJSON; asJSON {
		out = &said
	}
	err := winservice.Command(ctx, args, asService, c.log, out)
	if wrong := (winservice.UsageError{}); errors.As(err, &wrong) {
		return c.refuse(err)
	}
	return c.answer(serviced{append([]string{}, strings.FieldsFunc(said.String(), func(r rune) bool { return r == '\n' })...), problem(err)}, "", err)
}

// asService reads flags and variables as the daemon does that is to have them as a service.
func asService(args, env []string) (winservice.Daemon, error) {
	o, err := parseOptions(args, env)
	problems := []error{err}
	if o.Command != "" || o.Help || o.Version {
		problems = append(problems, errors.New("what follows -- are flags of the daemon, and no command"))
	}
	if o.Kube.On && o.Kube.NodeName == "" && (o.Kube.PodName == "" || o.Kube.PodNamespace == "") {
		problems = append(problems, errors.New("--kube-subnet-mgr needs the node's name: add --env NODE_NAME=…, before --"))
	}
	return winservice.Daemon{Files: o.files(), LogFile: o.LogFile}, errors.Join(problems...)
}

// files are all that the options name.
func (o *options) files() []string {
	all := append([]string{o.LogFile, o.SubnetFile, o.Etcd.CAFile, o.Etcd.CertFile, o.Etcd.KeyFile, o.Kube.Kubeconfig, o.Kube.NetConfPath,
		o.CNI.ConfFrom, o.CNI.ConfTo, o.CNI.PluginFrom, o.CNI.PluginTo}, o.Kube.APIFrom...)
	return slices.DeleteFunc(all, func(f string) bool { return f == "" })
}
