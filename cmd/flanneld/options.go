package main

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"flannel/pkg/cniinstall"
	"flannel/pkg/flags"
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
	given := flags.Parse(&o, flagTable(), args, environ)
	problems := given.Problems
	o.Warnings = append(given.Warnings, o.Warnings...)
	o.Etcd.complete()
	o.Kube.complete(environ)
	problems = append(problems, o.setCommand(given.Rest)...)
	if o.Command == "service" && given.OnLine {
		problems = append(problems, errors.New("flags of the service come after --, as in: flanneld service install -- --kube-subnet-mgr"))
	}
	if o.Help || o.Version {
		return o, nil // who asks for help may have got the rest wrong
	}
	return o, errors.Join(append(problems, o.contradictions(given.Flags)...)...)
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
func (o *options) contradictions(given map[string]flags.Values) []error {
	var problems []error
	together := func(one string, hasOne bool, other string, hasOther bool) {
		if hasOne && !hasOther {
			problems = append(problems, fmt.Errorf("%s: needs --%s too", given[one].Source, other))
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

	unused, why := kubeFlags(), "off"
	if o.Kube.On {
		unused, why = etcdFlags(), "on"
	}
	for _, f := range unused {
		if v, ok := given[f.Name]; ok && f.Name != "kube-subnet-mgr" {
			o.Warnings = append(o.Warnings, v.Source+": without effect, because --kube-subnet-mgr is "+why)
		}
	}
	return problems
}
