package main

import (
	"fmt"
	"math"
	"regexp"
	"time"

	"flannel/pkg/redact"
)

// flagRow is a row in the table of flags, which says all that there is to say about one.
type flagRow struct {
	name, arg, def, help string // arg names the value in the help; a boolean flag has none
	repeat               bool   // may be given more than once; no default
	noEnv                bool   // only on the command line
	set                  func(o *options, text string) error
}

type group struct {
	title string
	mode  mode
	flags []flagRow
}

// mode says where leases must come from for a group of flags to have an effect.
type mode int

const (
	anyMode mode = iota
	etcdMode
	kubeMode
)

func flagGroups() []group {
	return []group{
		{"Leases in etcd", etcdMode, etcdFlags()},
		{"Leases in Kubernetes", kubeMode, kubeFlags()},
		{"Underlay: the interface by which nodes meet; without these, that of the default route", anyMode, underlayFlags()},
		{"Network of this node", anyMode, networkFlags()},
		{"CNI plugin: kept in place while the daemon runs, see also install-cni", anyMode, cniFlags()},
		{"Health and logs", anyMode, healthFlags()},
	}
}

func etcdFlags() []flagRow {
	return []flagRow{
		{name: "etcd-endpoints", arg: "URL,…", def: "http://127.0.0.1:4001,http://127.0.0.1:2379", set: setEndpoints,
			help: "etcd servers"},
		{name: "etcd-prefix", arg: "PATH", def: "/coreos.com/network", set: setPrefix,
			help: "where in etcd the configuration and the leases are"},
		text("etcd-cafile", "FILE", "", "authority that the servers' certificates must be from", func(o *options) *string { return &o.Etcd.CAFile }),
		text("etcd-certfile", "FILE", "", "our certificate", func(o *options) *string { return &o.Etcd.CertFile }),
		text("etcd-keyfile", "FILE", "", "its key", func(o *options) *string { return &o.Etcd.KeyFile }),
		text("etcd-username", "NAME", "", "user", func(o *options) *string { return &o.Etcd.Username }),
		{name: "etcd-password", arg: "TEXT", help: "its password; better given as a variable, for other processes see a command line",
			set: func(o *options, v string) error { o.Etcd.Password = redact.NewSecret(v); return nil }},
		number("subnet-lease-renew-margin", "MINUTES", "60", 1, 1439, "how long before its end the lease (24 h) is renewed",
			func(o *options, n int) { o.Etcd.RenewMargin = time.Duration(n) * time.Minute }),
	}
}

func kubeFlags() []flagRow {
	return []flagRow{
		boolean("kube-subnet-mgr", "false", "take leases from the Kubernetes API instead of etcd", func(o *options) *bool { return &o.Kube.On }),
		{name: "kube-api-url", arg: "URL", set: setAPIURL, help: "API server; default: as the kubeconfig or the pod's service account has it"},
		{name: "kube-api-from", arg: "FILE", repeat: true, set: setAPIFrom,
			help: "kubeconfig to take the API server's address from, and nothing else; the first that is there and names one counts, --kube-api-url counts for more"},
		text("kubeconfig-file", "FILE", "", "kubeconfig; default: the pod's service account", func(o *options) *string { return &o.Kube.Kubeconfig }),
		{name: "kube-annotation-prefix", arg: "TEXT", def: "flannel.alpha.coreos.com", set: setAnnotationPrefix,
			help: "prefix of our annotations on the Node"},
		text("net-config-path", "FILE", systemPath("/etc/kube-flannel/net-conf.json"), "the network configuration", func(o *options) *string { return &o.Kube.NetConfPath }),
		boolean("set-node-network-unavailable", "true", "set the Node's condition NetworkUnavailable to False when in step",
			func(o *options) *bool { return &o.Kube.SetNetworkUnavailable }),
	}
}

func underlayFlags() []flagRow {
	return []flagRow{
		{name: "iface", arg: "NAME|IP", repeat: true, set: setIface, help: "interface; tried in order"},
		{name: "iface-regex", arg: "REGEX", repeat: true, set: setIfaceRegex,
			help: "likewise, tried after every --iface; matched against addresses first, then names"},
		{name: "iface-can-reach", arg: "IP", set: setCanReach, help: "likewise, tried when neither of these matches: the interface and source address that the route to IP uses"},
		{name: "public-ip", arg: "IP", set: setPublicV4, help: "IPv4 address told to the other nodes; default: the interface's. Without the flags above it selects the interface that has it, if one has"},
		{name: "public-ipv6", arg: "IP", set: setPublicV6, help: "likewise for IPv6"},
	}
}

func networkFlags() []flagRow {
	return []flagRow{
		{name: "subnet-file", arg: "FILE", def: systemPath("/run/flannel/subnet.env"), set: setSubnetFile, help: "file that tells the CNI plugin about the subnet"},
		boolean("ip-masq", "false", "masquerade what leaves the pod network", func(o *options) *bool { return &o.IPMasq }),
		{name: "ip-masq-fully-random-disable", def: "false", help: "masquerade without --random-fully",
			set: func(o *options, v string) error { b, err := parseBool(v); o.RandomFully = !b; return err }},
		boolean("iptables-forward-rules", "true", "accept forwarded traffic of the pod network", func(o *options) *bool { return &o.ForwardRules }),
		number("iptables-resync", "SECONDS", "5", 1, 86400, "how often the rules are compared with what they shall be",
			func(o *options, n int) { o.Resync = time.Duration(n) * time.Second }),
		number("retain-peers", "SECONDS", "300", 0, 86400, "how long peers stay when more than max(3, 20 %) of them leave the store within that time; 0: not at all",
			func(o *options, n int) { o.RetainPeers = time.Duration(n) * time.Second }),
		{name: "config-follow", def: "true", help: "follow a network configuration that changes; false: what is read at the start stays in force",
			set: func(o *options, v string) error { b, err := parseBool(v); o.KeepConfig = !b; return err }},
		{name: "config-stagger", arg: "DURATION", def: "2m", set: setStagger,
			help: "of a configuration that cuts nodes off from each other (backend, VNI, port): how long two nodes try it before others do; 0: all adopt it at once"},
		boolean("ip-blackhole-route", "false", "drop what is for pods of this node that are gone", func(o *options) *bool { return &o.Blackhole }),
	}
}

func cniFlags() []flagRow {
	return []flagRow{
		text("cni-conf-from", "FILE", "", "configuration list; plugins of others in it stay", func(o *options) *string { return &o.CNI.ConfFrom }),
		text("cni-conf-to", "FILE", "", "where to", func(o *options) *string { return &o.CNI.ConfTo }),
		text("cni-plugin-from", "FILE", "", "plugin, or a directory of them", func(o *options) *string { return &o.CNI.PluginFrom }),
		text("cni-plugin-to", "FILE", "", "where to", func(o *options) *string { return &o.CNI.PluginTo }),
	}
}

func healthFlags() []flagRow {
	return []flagRow{
		{name: "healthz-ip", arg: "IP", def: "0.0.0.0", set: setHealthzIP, help: "address of /healthz, /readyz and /metrics"},
		number("healthz-port", "PORT", "0", 0, math.MaxUint16, "their port; 0: off", setHealthzPort),
		{name: "log-format", arg: "text|json", def: "text", set: setLogFormat, help: "how log lines are written"},
		text("log-file", "FILE", "", "write the log there instead of to stderr; at 10 MiB it becomes FILE.1",
			func(o *options) *string { return &o.LogFile }),
		number("v", "LEVEL", "0", 0, 10, "log more; 0 to 10", func(o *options, n int) { o.Verbosity = n }),
		text("vmodule", "FILE=LEVEL,…", "", "likewise, for single source files", func(o *options) *string { return &o.VModule }),
		text("log_backtrace_at", "FILE:LINE", "", "log a stack trace at this line", func(o *options) *string { return &o.LogBacktraceAt }),
		only(boolean("version", "false", "print the version and exit", func(o *options) *bool { return &o.Version })),
		only(boolean("help", "false", "print this and exit", func(o *options) *bool { return &o.Help })),
	}
}

func text(name, arg, def, help string, at func(*options) *string) flagRow {
	return flagRow{name: name, arg: arg, def: def, help: help, set: func(o *options, v string) error { *at(o) = v; return nil }}
}

func boolean(name, def, help string, at func(*options) *bool) flagRow {
	return flagRow{name: name, def: def, help: help, set: func(o *options, v string) (err error) {
		*at(o), err = parseBool(v)
		return err
	}}
}

func number(name, arg, def string, least, most int, help string, to func(*options, int)) flagRow {
	return flagRow{name: name, arg: arg, def: def, help: help, set: func(o *options, v string) error {
		n, err := parseInt(v, least, most)
		if err == nil {
			to(o, n)
		}
		return err
	}}
}

// only keeps a flag off the environment: FLANNELD_VERSION may well be the version of an image.
func only(f flagRow) flagRow { f.noEnv = true; return f }

func setIfaceRegex(o *options, v string) error {
	re, err := regexp.Compile(v)
	if err != nil {
		return fmt.Errorf("%.60q is no regular expression: %w", v, err)
	}
	if v != "" {
		o.Underlay.IfaceRegex = append(o.Underlay.IfaceRegex, re)
	}
	return nil
}
