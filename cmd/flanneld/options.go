package main

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"flannel/pkg/cniinstall"
	"flannel/pkg/conf"
	"flannel/pkg/redact"
	"flannel/pkg/underlay"
)

// options are the command line and the environment, checked. They hold no file's content and no result of a look at
// the machine.
type options struct {
	Etcd     etcdOptions
	Kube     kubeOptions
	CNI      cniinstall.Files
	Underlay underlay.Options

	SubnetFile   string
	IPMasq       bool
	RandomFully  bool
	ForwardRules bool
	Blackhole    bool
	Resync       time.Duration
	RetainPeers  time.Duration // 0: off
	KeepConfig   bool
	Stagger      time.Duration

	Healthz netip.AddrPort // port 0: off

	LogFormat      string // "text" or "json"
	LogFile        string // "": stderr
	Verbosity      int    // klog's v
	VModule        string // klog's, as given
	LogBacktraceAt string // klog's, as given

	Version, Help bool
	Command       string   // "" runs the daemon; else a name of the table of commands
	Args          []string // what follows Command
	Warnings      []string // likely mistakes that do no harm
}

type etcdOptions struct {
	Endpoints                 []string // URLs
	Prefix                    string   // begins with a slash if the flag does, and ends with none
	KeyFile, CertFile, CAFile string
	Username                  string
	Password                  redact.Secret
	RenewMargin               time.Duration
}

type kubeOptions struct {
	On                    bool
	APIURL, Kubeconfig    string
	APIFrom               []string // kubeconfigs
	AnnotationPrefix      string   // complete: what follows is the annotation's own name
	NetConfPath           string
	SetNetworkUnavailable bool
	// From the variables that every DaemonSet sets, which are no flags.
	NodeName, PodName, PodNamespace string
}

// parseOptions reads args (without the program's name) and environ (as of os.Environ). The error joins all problems,
// one a line. Neither it nor Warnings ever hold a secret.
func parseOptions(args, environ []string) (options, error) {
	var o options
	known := map[string]flagRow{}
	for _, g := range flagGroups() {
		for _, f := range g.flags {
			known[f.name] = f
		}
	}
	given, rest, problems := scan(args, known)
	fromEnv, warnings := scanEnv(environ, known)
	o.Warnings = warnings
	alone := len(given) == 0
	for name, v := range fromEnv {
		if _, ok := given[name]; !ok {
			given[name] = v
		}
	}
	for _, g := range flagGroups() {
		for _, f := range g.flags {
			v, ok := given[f.name]
			if !ok && !f.repeat {
				v = values{"default of --" + f.name, []string{f.def}}
			}
			for _, text := range v.texts {
				if err := f.set(&o, text); err != nil {
					problems = append(problems, fmt.Errorf("%s: %w", v.source, err))
				}
			}
		}
	}
	o.Etcd.complete()
	o.Kube.complete(environ)
	problems = append(problems, o.setCommand(rest)...)
	if o.Command == "service" && !alone {
		problems = append(problems, errors.New("flags of the service come after --, as in: flanneld service install -- --kube-subnet-mgr"))
	}
	if o.Help || o.Version {
		return o, nil // who asks for help may have got the rest wrong
	}
	return o, errors.Join(append(problems, o.contradictions(given)...)...)
}

// values are what was given for one flag.
type values struct {
	source string // "--iface" or "FLANNELD_IFACE"
	texts  []string
}

// scan takes flags from args as Go's flag package does: one dash or two, a value after = or as the next argument
// (not for booleans), the first other argument or "--" ends them.
func scan(args []string, known map[string]flagRow) (given map[string]values, rest []string, problems []error) {
	given = map[string]values{}
	for len(args) > 0 {
		arg := args[0]
		if len(arg) < 2 || arg[0] != '-' {
			break
		}
		args = args[1:]
		if arg == "--" {
			break
		}
		name, value, hasValue := strings.Cut(strings.TrimPrefix(arg[1:], "-"), "=")
		if name == "h" {
			name = "help"
		}
		f, ok := known[name]
		switch {
		case !ok:
			// What follows may be its value or not: there is no going on.
			return given, nil, append(problems, unknownFlag(name, known))
		case hasValue:
		case f.arg == "":
			value = "true"
		case len(args) == 0:
			problems = append(problems, fmt.Errorf("--%s: the value is missing; write --%s=%s", name, name, f.arg))
			continue
		default:
			value, args = args[0], args[1:]
		}
		given[name] = values{"--" + name, append(given[name].texts, value)}
	}
	return given, args, problems
}

func unknownFlag(name string, known map[string]flagRow) error {
	hint := "see --help"
	if near := conf.Nearest(name, slices.Sorted(maps.Keys(known))); near != "" {
		hint = "did you mean --" + near + "?"
	}
	return fmt.Errorf("--%.60s: unknown flag; %s", strings.Trim(strconv.Quote(name), `"`), hint)
}

// scanEnv takes flags from variables. An empty one counts as absent; one that is no flag is a warning, for an
// orchestrator may have set it for a service of that name.
func scanEnv(environ []string, known map[string]flagRow) (map[string]values, []string) {
	given := map[string]values{}
	var warnings []string
	variables := map[string]string{}
	for name, f := range known {
		if !f.noEnv {
			variables[variable(name)] = name
		}
	}
	for _, e := range slices.Sorted(slices.Values(environ)) {
		key, value, _ := strings.Cut(e, "=")
		if !strings.HasPrefix(key, "FLANNELD_") || value == "" {
			continue
		}
		if name, ok := variables[key]; ok {
			given[name] = values{key, []string{value}}
			continue
		}
		text := strings.Trim(strconv.Quote(fmt.Sprintf("%.60s", key)), `"`) + ": no flag goes by this variable"
		name := strings.ReplaceAll(strings.TrimPrefix(key, "FLANNELD_"), "_", "-")
		if near := conf.Nearest(name, slices.Sorted(maps.Values(variables))); near != "" {
			text += ", did you mean " + variable(near) + "?"
		}
		warnings = append(warnings, text)
	}
	return given, warnings
}

// variable names a flag's environment variable.
func variable(name string) string {
	return "FLANNELD_" + strings.ToUpper(strings.ReplaceAll(name, "-", "_"))
}

func (o *options) setCommand(rest []string) []error {
	if len(rest) == 0 {
		return nil
	}
	names := commandNames()
	if slices.Contains(names, rest[0]) {
		o.Command, o.Args = rest[0], rest[1:]
		return nil
	}
	if _, err := strconv.ParseBool(rest[0]); err == nil {
		return []error{fmt.Errorf("%q stands alone; give a truth value with =, as in --ip-masq=%s", rest[0], rest[0])}
	}
	return []error{fmt.Errorf("%.60q is no command; there is %s", rest[0], strings.Join(names, ", "))}
}

// contradictions finds what cannot be together; what merely has no effect becomes a warning.
func (o *options) contradictions(given map[string]values) []error {
	var problems []error
	together := func(one string, hasOne bool, other string, hasOther bool) {
		if hasOne && !hasOther {
			problems = append(problems, fmt.Errorf("%s: needs --%s too", given[one].source, other))
		}
	}
	key, cert := o.Etcd.KeyFile != "", o.Etcd.CertFile != ""
	user, password := o.Etcd.Username != "", o.Etcd.Password.Reveal() != ""
	together("cni-conf-from", o.CNI.ConfFrom != "", "cni-conf-to", o.CNI.ConfTo != "")
	together("cni-plugin-from", o.CNI.PluginFrom != "", "cni-plugin-to", o.CNI.PluginTo != "")
	together("etcd-certfile", cert, "etcd-keyfile", key)
	together("etcd-keyfile", key, "etcd-certfile", cert)
	together("etcd-username", user, "etcd-password", password)
	together("etcd-password", password, "etcd-username", user)

	for _, g := range flagGroups() {
		for _, f := range g.flags {
			v, ok := given[f.name]
			switch {
			case !ok:
			case g.mode == etcdMode && o.Kube.On:
				o.Warnings = append(o.Warnings, v.source+": without effect, because --kube-subnet-mgr is on")
			case g.mode == kubeMode && !o.Kube.On && f.name != "kube-subnet-mgr":
				o.Warnings = append(o.Warnings, v.source+": without effect, because --kube-subnet-mgr is off")
			}
		}
	}
	return problems
}
