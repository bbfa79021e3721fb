package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"flannel/pkg/windows/service"
)

const aboutService = `Runs flanneld as a Windows service. It starts with the system and is restarted when it fails. Warnings and
errors are logged to the event log (Application, source ` + service.Name + `), everything to --log-file, by default
` + service.LogFile + `.`

const aboutServiceInstall = `Checks the daemon's flags, which follow after --, and creates the service or changes an existing one. A
service does not get the variables of this shell: set those that it needs by --env.`

// serviceExample is also a part of errors.
const serviceExample = "flanneld service install --env NODE_NAME=worker1 -- --kube-subnet-mgr"

// serviceAnswer is the JSON document of service.
type serviceAnswer struct {
	Said    []string `json:"said"` // the lines that it prints without --json
	Problem string   `json:"problem,omitempty"`
}

// controlService is service.Control, or the function that replaces it in tests.
type controlService func(ctx context.Context, verb string, config service.Config, out io.Writer) error

// serviceCommands returns the commands below service, which control carries out.
func serviceCommands(control controlService) []command {
	// run is for the service manager, see service.Started. A person gets an error.
	run := control.command("run", "run the daemon under the service manager")
	run.hidden = true
	status := control.command("status", "show the service's state")
	status.exits = map[int]string{exitOK: "the service runs", exitError: "it does not run, or an error"}
	return []command{
		{name: "install", flags: control.install, about: aboutServiceInstall, passes: true, help: "create the service, or change an existing one",
			example: "  " + serviceExample},
		control.command("start", "start the service, unless it runs already"),
		control.command("stop", "stop the service, if it runs"),
		status,
		control.command("uninstall", "remove the service if there is one, and leave the network in place"),
		run,
	}
}

// command returns a command that needs no configuration. Its field flags, as that of all
// commands, declares the flags, and returns what runs when they are parsed.
func (control controlService) command(verb, help string) command {
	return command{name: verb, help: help, flags: func(c *call) func(context.Context) int {
		c.serviceJSON()
		return func(ctx context.Context) int { return control.run(ctx, c, verb, service.Config{}) }
	}}
}

// install is the command service install.
func (control controlService) install(c *call) func(context.Context) int {
	start := c.flags.Bool("start", false, "also start the service, and restart a running one if something changed")
	var env service.Variables
	c.flags.Var(&env, "env", "environment variable of the service; may be repeated")
	c.serviceJSON()
	return func(ctx context.Context) int {
		program, err := os.Executable()
		if err != nil {
			return c.fail(fmt.Errorf("service install: %w", err))
		}
		daemon, err := parseServiceOptions(c.passed, env) // after a mistake, daemon has what was valid
		config, invalid := service.NewConfig(program, c.passed, env, daemon)
		if err := errors.Join(err, invalid); err != nil {
			return c.reportUsage(fmt.Errorf("service install: %w", err))
		}
		config.Start = *start
		for _, w := range config.Warnings() {
			c.log.Warn(w)
		}
		return control.run(ctx, c, "install", config)
	}
}

// serviceJSON declares --json.
func (c *call) serviceJSON() {
	c.jsonFlag("print one JSON document: said (the messages), problem")
}

// run carries out a verb.
func (control controlService) run(ctx context.Context, c *call, verb string, config service.Config) int {
	var said strings.Builder
	out := c.stdout
	if c.json {
		out = &said
	}
	err := control(ctx, verb, config, out)
	lines := strings.FieldsFunc(said.String(), func(r rune) bool { return r == '\n' })
	return c.answer(serviceAnswer{append([]string{}, lines...), problem(err)}, "", err) // "": without --json, control has printed the text
}

// parseServiceOptions validates the flags and variables that the service passes
// to the daemon. It sees the variables of --env alone: those of this process
// are not passed on.
func parseServiceOptions(args, env []string) (service.Daemon, error) {
	o, err := parseOptions(args, env)
	problems := []error{err}
	if o.Command != "" || o.Help || o.Version {
		problems = append(problems, errors.New("only flags of the daemon may follow --, no command"))
	}
	if o.Kube.On && o.Kube.NodeName == "" && (o.Kube.PodName == "" || o.Kube.PodNamespace == "") {
		problems = append(problems, errors.New("--kube-subnet-mgr requires the node's name: add --env NODE_NAME=… before --"))
	}
	return service.Daemon{Files: o.files(), LogFile: o.Logging.File}, errors.Join(problems...)
}

// files returns all file names in the options.
func (o *options) files() []string {
	all := append([]string{o.Logging.File, o.SubnetFile, o.Etcd.CAFile, o.Etcd.CertFile, o.Etcd.KeyFile, o.Kube.Kubeconfig, o.Kube.NetConfPath,
		o.CNI.ConfFrom, o.CNI.ConfTo, o.CNI.PluginFrom, o.CNI.PluginTo}, o.Kube.APIFrom...)
	return slices.DeleteFunc(all, func(f string) bool { return f == "" })
}
