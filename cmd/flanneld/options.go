package main

import (
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"flannel/pkg/cni/install"
	"flannel/pkg/conf"
	"flannel/pkg/daemon"
	"flannel/pkg/file"
	"flannel/pkg/logging"
	"flannel/pkg/underlay"
)

// options are the values of the command line and the environment after
// validation. Nothing in them is read from files; findMounted only looks where files are. (run
// then reads --kube-api-from, for Kube.APIURL.)
type options struct {
	Etcd     etcdOptions
	Kube     kubeOptions
	CNI      install.Files
	Underlay underlay.Options
	Logging  logging.Options // without Stderr and Events

	daemon.Settings // without OS, CompareAll and ConfigSkew, which start sets

	Probe       bool // send echo requests to peers
	PeerMetrics bool // metrics of each peer

	FirewallResync time.Duration  // interval of comparing the firewall rules with the desired ones
	Healthz        netip.AddrPort // port 0: disabled
	WireGuardKey   string         // the file of the private key: flannel's variable WIREGUARD_KEY_FILE; "": the default

	given         map[string]string // the flags that are given, by name: "--v" on the line, or "FLANNELD_V"; without values, which may be secrets
	Version, Help bool
	Command       string   // a name from the table of commands; "": run the daemon
	Args          []string // arguments after Command
	Warnings      []string // likely mistakes, such as flags without effect; run logs them
}

// etcdOptions are the flags of the client of etcd.
type etcdOptions struct {
	Endpoints                 []string // URLs
	Prefix                    string   // begins with a slash if the flag does, and ends with none
	KeyFile, CertFile, CAFile string
	Username                  string
	Password                  conf.Secret
	RenewMargin               time.Duration
}

// kubeOptions are the flags of the client of the Kubernetes API. Some commands
// use it although the leases are in etcd.
type kubeOptions struct {
	On                    bool // leases are in Kubernetes; false: in etcd
	APIURL, Kubeconfig    string
	APIFrom               []string // kubeconfigs, from the first of which that exists the API server's URL is read
	AnnotationPrefix      string   // ends with "/" or "-"; only the annotation's name is appended
	NetConfPath           string
	SetNetworkUnavailable bool
	// These are not flags, but environment variables that flannel's manifests set.
	NodeName, PodName, PodNamespace string
}

// named reports whether the options say which API server to use.
func (o *kubeOptions) named() bool { return o.Kubeconfig != "" || o.APIURL != "" }

// parseOptions parses args (without the program's name) and environ (as from
// os.Environ). The error joins all problems, one per line. Neither the error
// nor Warnings contain secrets.
func parseOptions(args, environ []string) (options, error) {
	var o options
	given := conf.ParseFlags(&o, flagTable(), args, environ)
	problems := given.Problems
	o.given = map[string]string{}
	for name, v := range given.Flags {
		o.given[name] = v.Source
	}
	o.Warnings = append(given.Warnings, o.Warnings...) // the functions set… of flags have added o.Warnings
	o.Etcd.complete()
	o.Kube.complete(environ)
	o.WireGuardKey = variable(environ, "WIREGUARD_KEY_FILE")
	o.findMounted(variable(environ, file.SandboxMount))
	if err := o.misplaced(given.Unknown, args); err != nil { // given.Unknown: the first unknown flag, whose problem is the first
		problems[0] = err
	}
	problems = append(problems, o.setCommand(given.Rest)...)
	// The service manager starts the daemon with the flags after --. Before the
	// command they would be lost.
	if o.Command == "service" && given.OnLine {
		problems = append(problems, errors.New("flags of the service come after --, as in: flanneld service install -- --kube-subnet-mgr"))
	}
	// The commands below node run others with flags of their own.
	if o.Command == "node" && given.OnLine {
		problems = append(problems, errors.New("flags before node have no effect; flanneld node start --help lists those of a node"))
	}
	if o.Help || o.Version || slices.Contains(informing, o.Command) {
		if o.Help {
			o.Command, o.Args = "", nil
		}
		return o, nil // print the help even if other flags are wrong
	}
	return o, errors.Join(append(problems, o.checkCombinations()...)...)
}

// findMounted replaces the names of files that may be in a volume by their paths in
// the root directory of a HostProcess container (Windows); "": this is none, and the
// names stay.
func (o *options) findMounted(root string) {
	read := []*string{&o.Etcd.CAFile, &o.Etcd.CertFile, &o.Etcd.KeyFile, &o.Kube.Kubeconfig, &o.Kube.NetConfPath, &o.CNI.ConfFrom, &o.CNI.PluginFrom}
	o.Kube.APIFrom = slices.Clone(o.Kube.APIFrom)
	for i := range o.Kube.APIFrom {
		read = append(read, &o.Kube.APIFrom[i])
	}
	for _, path := range read {
		*path = file.Mounted(root, *path)
	}
}

// setCommand takes the command and its arguments from rest, the arguments after the
// flags. A Boolean among them is probably the value in "--ip-masq true", which Go's
// flag package and this one do not accept.
func (o *options) setCommand(rest []string) []error {
	if len(rest) == 0 {
		return nil
	}
	if slices.Contains(commandNames(), rest[0]) {
		o.Command, o.Args = rest[0], rest[1:]
		return nil
	}
	if _, err := strconv.ParseBool(rest[0]); err == nil {
		return []error{fmt.Errorf("unexpected argument %q; give a Boolean value with =, as in --ip-masq=%s", rest[0], rest[0])}
	}
	return []error{unknownCommand(o.commandTree(), rest[0])}
}

// informing are the commands that print the help or other texts of the program, even
// if flags or variables are wrong.
var informing = append([]string{"version"}, cobraCommands...)

// commandTree returns the commands to look at, not to run.
func (o *options) commandTree() *cobra.Command {
	exit := new(int) // nothing sets it
	return newRoot(commands(), &call{options: *o, process: process{stdout: io.Discard, stderr: io.Discard}}, exit)
}

// misplaced returns an error if the flag with this name, which is none of the
// daemon's, is a flag of the command that follows in args; else nil.
func (o *options) misplaced(flag string, args []string) error {
	i := slices.IndexFunc(args, func(arg string) bool { return slices.Contains(commandNames(), arg) })
	if flag == "" || i < 0 {
		return nil
	}
	cmd, _, err := o.commandTree().Find(args[i:])
	if err != nil || cmd.Flags().Lookup(flag) == nil {
		return nil
	}
	return fmt.Errorf("--%s: put it after %s, because it is a flag of that command", flag, nameOf(cmd))
}

// checkCombinations returns an error for each flag that lacks another one, and
// adds a warning for each flag that has no effect.
func (o *options) checkCombinations() []error {
	var problems []error
	requires := func(flag string, hasFlag bool, needed string, hasNeeded bool) {
		if hasFlag && !hasNeeded {
			problems = append(problems, fmt.Errorf("%s: also requires --%s", o.given[flag], needed))
		}
	}
	key, cert := o.Etcd.KeyFile != "", o.Etcd.CertFile != ""
	user, password := o.Etcd.Username != "", o.Etcd.Password.Reveal() != ""
	requires("cni-conf-from", o.CNI.ConfFrom != "", "cni-conf-to", o.CNI.ConfTo != "")
	requires("etcd-certfile", cert, "etcd-keyfile", key)
	requires("etcd-keyfile", key, "etcd-certfile", cert)
	requires("etcd-username", user, "etcd-password", password)
	requires("etcd-password", password, "etcd-username", user)

	// Flags of the store that is not used do no harm, so this is only a warning.
	unused, why := kubeFlags(), "off"
	if o.Kube.On {
		unused, why = etcdFlags(), "on"
	} else if slices.ContainsFunc(commands(), func(c command) bool { return c.name == o.Command && c.kubeAPI }) {
		unused = nil
	}
	for _, f := range unused {
		if source, ok := o.given[f.Name]; ok && f.Name != "kube-subnet-mgr" {
			o.Warnings = append(o.Warnings, source+": has no effect, because --kube-subnet-mgr is "+why)
		}
	}
	return problems
}
