package main

import (
	"context"
	"errors"
	goflag "flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"regexp"
	"slices"
	"strings"
	"time"
)

const (
	// serviceName is that of the Windows service, and of its source in the event log.
	serviceName = "flanneld"
	// serviceLog is the log file of a service that is given none: without one it would have warnings alone.
	serviceLog = `C:\var\log\flanneld\flanneld.log`
)

// serviceConfig is what the service manager shall know of the service.
type serviceConfig struct {
	Command      []string        // the program and its arguments
	Env          []string        // NAME=VALUE, beside the system's
	RestartAfter []time.Duration // its first, second, and any later failure
	RestartReset time.Duration   // after so long without one, the next failure counts as the first again
	Start        bool            // once it is made; one that runs with something else is started anew
}

func newService(command, env []string) serviceConfig {
	return serviceConfig{Command: command, Env: env, RestartAfter: []time.Duration{time.Second, 5 * time.Second, 30 * time.Second}, RestartReset: 10 * time.Minute}
}

const serviceUsage = `flanneld as a Windows service, which starts with the system and is restarted when it fails.

  flanneld service install [--json] [--start] [--env NAME=VALUE]... -- [flags of the daemon]
  flanneld service start | stop | status | uninstall [--json]

install checks the flags, and changes a service that is there already. With --start it runs then,
and one that runs is started anew if something changed. Variables of this shell do not reach a
service: give it those that it needs, such as --env NODE_NAME=worker1. Warnings and errors go to
the event log (Application, source ` + serviceName + `), everything to --log-file, by default
` + serviceLog + `. With --json what is said is one JSON document: said, problem.
`

// serviced is what service answers with --json.
type serviced struct {
	Said    []string `json:"said"` // line by line what it says without
	Problem string   `json:"problem,omitempty"`
}

// answerService is the command service.
func answerService(ctx context.Context, o options, log *slog.Logger, stdout, stderr io.Writer) int {
	var said strings.Builder
	args, asJSON := withoutJSON(o.Args)
	out := stdout
	if asJSON {
		out = &said
	}
	err := service(ctx, args, log, out)
	if wrong := (usageError{}); errors.As(err, &wrong) {
		return refuse(o.Args, err, stdout, stderr)
	}
	return answer(stdout, stderr, asJSON, serviced{append([]string{}, strings.FieldsFunc(said.String(), func(r rune) bool { return r == '\n' })...), problem(err)}, "", err)
}

// usageError is one of the command line.
type usageError struct{ error }

// service makes and controls the Windows service.
func service(ctx context.Context, args []string, log *slog.Logger, stdout io.Writer) error {
	verb, rest := "", args
	if len(rest) > 0 {
		verb, rest = rest[0], rest[1:]
	}
	var config serviceConfig
	switch {
	case slices.Contains([]string{"-h", "--help", "-help", "help"}, verb):
		_, err := io.WriteString(stdout, serviceUsage)
		return err
	case !slices.Contains([]string{"install", "uninstall", "start", "stop", "status", "run"}, verb):
		return usageError{fmt.Errorf("service: %.40q is none of install, uninstall, start, stop and status; see flanneld service --help", verb)}
	case verb == "install":
		program, err := os.Executable()
		if err != nil {
			return fmt.Errorf("service install: %w", err)
		}
		if config, err = parseInstall(program, rest); errors.Is(err, goflag.ErrHelp) {
			_, err := io.WriteString(stdout, serviceUsage)
			return err
		} else if err != nil {
			return usageError{fmt.Errorf("service install: %w", err)}
		}
		for _, w := range config.warnings() {
			log.Warn(w)
		}
	case len(rest) > 0:
		return usageError{fmt.Errorf("service %s takes no argument %.40q", verb, rest[0])}
	}
	return controlService(ctx, verb, config, stdout)
}

// parseInstall makes the service's configuration of the arguments of install; what the daemon would refuse is refused.
func parseInstall(program string, args []string) (serviceConfig, error) {
	var env []string
	flags := goflag.NewFlagSet("", goflag.ContinueOnError)
	flags.SetOutput(io.Discard)
	start := flags.Bool("start", false, "start it, too")
	flags.Func("env", "a variable", func(text string) (err error) { env, err = addVariable(env, text); return err })
	if err := flags.Parse(args); err != nil {
		return serviceConfig{}, fmt.Errorf("%w; the daemon's flags come after --, as in: flanneld service install -- --kube-subnet-mgr", err)
	}
	args = flags.Args()
	o, err := parseOptions(args, env)
	problems := []error{err}
	if o.Command != "" || o.Help || o.Version {
		problems = append(problems, errors.New("what follows -- are flags of the daemon, and no command"))
	}
	if o.Kube.On && o.Kube.NodeName == "" && (o.Kube.PodName == "" || o.Kube.PodNamespace == "") {
		problems = append(problems, errors.New("--kube-subnet-mgr needs the node's name: add --env NODE_NAME=…, before --"))
	}
	for _, file := range o.files() {
		if !rooted(file) {
			problems = append(problems, fmt.Errorf("%.100q: a service starts in a folder of its own; give the whole path", file))
		}
	}
	for _, arg := range append([]string{program}, args...) {
		if strings.Count(arg, "%") > 1 {
			problems = append(problems, fmt.Errorf("%.100q: Windows replaces what stands between two %%; give the flag as a variable by --env", arg))
		}
	}
	if err := errors.Join(problems...); err != nil {
		return serviceConfig{}, err
	}
	command := append([]string{program}, args...)
	// An empty --log-file is somebody's wish.
	if o.LogFile == "" && !slices.ContainsFunc(args, func(a string) bool { return strings.HasPrefix(strings.TrimLeft(a, "-"), "log-file=") }) {
		command = append(command, "--log-file="+serviceLog)
	}
	config := newService(append(command, "service", "run"), env)
	config.Start = *start
	return config, nil
}

// addVariable adds NAME=VALUE in place of an earlier one of that name, which Windows takes without regard to case.
func addVariable(env []string, text string) ([]string, error) {
	name, _, ok := strings.Cut(text, "=")
	if !ok || name == "" || strings.ContainsAny(text, "\x00") {
		return nil, fmt.Errorf("%.60q is not of the form NAME=VALUE", name)
	}
	env = slices.DeleteFunc(env, func(e string) bool {
		other, _, _ := strings.Cut(e, "=")
		return strings.EqualFold(other, name)
	})
	return append(env, text), nil
}

// files are all that the options name.
func (o *options) files() []string {
	all := append([]string{o.LogFile, o.SubnetFile, o.Etcd.CAFile, o.Etcd.CertFile, o.Etcd.KeyFile, o.Kube.Kubeconfig, o.Kube.NetConfPath,
		o.CNI.ConfFrom, o.CNI.ConfTo, o.CNI.PluginFrom, o.CNI.PluginTo}, o.Kube.APIFrom...)
	return slices.DeleteFunc(all, func(f string) bool { return f == "" })
}

// rootedForm is a Windows path that does not depend on the current folder.
var rootedForm = regexp.MustCompile(`^([A-Za-z]:)?[/\\]`)

func rooted(path string) bool { return rootedForm.MatchString(path) }

// warnings are about what everybody who may log on could read: the registry has a service's arguments and variables.
func (c serviceConfig) warnings() []string {
	for _, text := range append(c.Command, c.Env...) {
		name, _, _ := strings.Cut(strings.ToLower(strings.ReplaceAll(strings.TrimLeft(text, "-"), "_", "-")), "=")
		if name == "etcd-password" || name == "flanneld-etcd-password" {
			return []string{"every user of this machine can read the etcd password of a service; better use a client certificate"}
		}
	}
	return nil
}
