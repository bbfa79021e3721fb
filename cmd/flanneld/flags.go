package main

import (
	"fmt"
	"math"
	"regexp"
	"time"

	"flannel/pkg/flags"
	"flannel/pkg/redact"
)

// flagRow is a row in the table of the daemon's flags.
type flagRow = flags.Flag[options]

// flagTable is the table. A new flag is one row, in one of these groups.
func flagTable() []flags.Group[options] {
	return []flags.Group[options]{
		{Title: "Leases in etcd", Flags: etcdFlags()},
		{Title: "Leases in Kubernetes", Flags: kubeFlags()},
		{Title: "Underlay: the interface by which nodes meet; without these, that of the default route", Flags: underlayFlags()},
		{Title: "Network of this node", Flags: networkFlags()},
		{Title: "CNI plugin: kept in place while the daemon runs, see also install-cni", Flags: cniFlags()},
		{Title: "Health and logs", Flags: healthFlags()},
	}
}

func etcdFlags() []flagRow {
	return []flagRow{
		{Name: "etcd-endpoints", Arg: "URL,…", Def: "http://127.0.0.1:4001,http://127.0.0.1:2379", Set: setEndpoints,
			Help: "etcd servers"},
		{Name: "etcd-prefix", Arg: "PATH", Def: "/coreos.com/network", Set: setPrefix,
			Help: "where in etcd the configuration and the leases are"},
		flags.Text("etcd-cafile", "FILE", "", "authority that the servers' certificates must be from", func(o *options) *string { return &o.Etcd.CAFile }),
		flags.Text("etcd-certfile", "FILE", "", "our certificate", func(o *options) *string { return &o.Etcd.CertFile }),
		flags.Text("etcd-keyfile", "FILE", "", "its key", func(o *options) *string { return &o.Etcd.KeyFile }),
		flags.Text("etcd-username", "NAME", "", "user", func(o *options) *string { return &o.Etcd.Username }),
		{Name: "etcd-password", Arg: "TEXT", Help: "its password; better given as a variable, for other processes see a command line",
			Set: func(o *options, v string) error { o.Etcd.Password = redact.NewSecret(v); return nil }},
		flags.Int("subnet-lease-renew-margin", "MINUTES", "60", 1, 1439, "how long before its end the lease (24 h) is renewed",
			func(o *options, n int) { o.Etcd.RenewMargin = time.Duration(n) * time.Minute }),
	}
}

func kubeFlags() []flagRow {
	return []flagRow{
		flags.Bool("kube-subnet-mgr", "false", "take leases from the Kubernetes API instead of etcd", func(o *options) *bool { return &o.Kube.On }),
		{Name: "kube-api-url", Arg: "URL", Set: setAPIURL, Help: "API server; default: as the kubeconfig or the pod's service account has it"},
		{Name: "kube-api-from", Arg: "FILE", Repeat: true, Set: setAPIFrom,
			Help: "kubeconfig to take the API server's address from, and nothing else; the first that is there and names one counts, --kube-api-url counts for more"},
		flags.Text("kubeconfig-file", "FILE", "", "kubeconfig; default: the pod's service account", func(o *options) *string { return &o.Kube.Kubeconfig }),
		{Name: "kube-annotation-prefix", Arg: "TEXT", Def: "flannel.alpha.coreos.com", Set: setAnnotationPrefix,
			Help: "prefix of our annotations on the Node"},
		flags.Text("net-config-path", "FILE", systemPath("/etc/kube-flannel/net-conf.json"), "the network configuration", func(o *options) *string { return &o.Kube.NetConfPath }),
		flags.Bool("set-node-network-unavailable", "true", "set the Node's condition NetworkUnavailable to False when in step",
			func(o *options) *bool { return &o.Kube.SetNetworkUnavailable }),
	}
}

func underlayFlags() []flagRow {
	return []flagRow{
		{Name: "iface", Arg: "NAME|IP", Repeat: true, Set: setIface, Help: "interface; tried in order"},
		{Name: "iface-regex", Arg: "REGEX", Repeat: true, Set: setIfaceRegex,
			Help: "likewise, tried after every --iface; matched against addresses first, then names"},
		{Name: "iface-can-reach", Arg: "IP", Set: setCanReach, Help: "likewise, tried when neither of these matches: the interface and source address that the route to IP uses"},
		{Name: "public-ip", Arg: "IP", Set: setPublicV4, Help: "IPv4 address told to the other nodes; default: the interface's. Without the flags above it selects the interface that has it, if one has"},
		{Name: "public-ipv6", Arg: "IP", Set: setPublicV6, Help: "likewise for IPv6"},
	}
}

func networkFlags() []flagRow {
	return []flagRow{
		{Name: "subnet-file", Arg: "FILE", Def: systemPath("/run/flannel/subnet.env"), Set: setSubnetFile, Help: "file that tells the CNI plugin about the subnet"},
		flags.Bool("ip-masq", "false", "masquerade what leaves the pod network", func(o *options) *bool { return &o.IPMasq }),
		{Name: "ip-masq-fully-random-disable", Def: "false", Help: "masquerade without --random-fully",
			Set: func(o *options, v string) error { b, err := flags.ParseBool(v); o.RandomFully = !b; return err }},
		flags.Bool("iptables-forward-rules", "true", "accept forwarded traffic of the pod network", func(o *options) *bool { return &o.ForwardRules }),
		flags.Int("iptables-resync", "SECONDS", "5", 1, 86400, "how often the rules are compared with what they shall be",
			func(o *options, n int) { o.Resync = time.Duration(n) * time.Second }),
		flags.Int("retain-peers", "SECONDS", "300", 0, 86400, "how long peers stay when more than max(3, 20 %) of them leave the store within that time; 0: not at all",
			func(o *options, n int) { o.RetainPeers = time.Duration(n) * time.Second }),
		{Name: "config-follow", Def: "true", Help: "follow a network configuration that changes; false: what is read at the start stays in force",
			Set: func(o *options, v string) error { b, err := flags.ParseBool(v); o.KeepConfig = !b; return err }},
		{Name: "config-stagger", Arg: "DURATION", Def: "2m", Set: setStagger,
			Help: "of a configuration that cuts nodes off from each other (backend, VNI, port): how long two nodes try it before others do; 0: all adopt it at once"},
		flags.Bool("ip-blackhole-route", "false", "drop what is for pods of this node that are gone", func(o *options) *bool { return &o.Blackhole }),
	}
}

func cniFlags() []flagRow {
	return []flagRow{
		flags.Text("cni-conf-from", "FILE", "", "configuration list; plugins of others in it stay", func(o *options) *string { return &o.CNI.ConfFrom }),
		flags.Text("cni-conf-to", "FILE", "", "where to", func(o *options) *string { return &o.CNI.ConfTo }),
		flags.Text("cni-plugin-from", "FILE", "", "plugin, or a directory of them", func(o *options) *string { return &o.CNI.PluginFrom }),
		flags.Text("cni-plugin-to", "FILE", "", "where to", func(o *options) *string { return &o.CNI.PluginTo }),
	}
}

func healthFlags() []flagRow {
	return []flagRow{
		{Name: "healthz-ip", Arg: "IP", Def: "0.0.0.0", Set: setHealthzIP, Help: "address of /healthz, /readyz and /metrics"},
		flags.Int("healthz-port", "PORT", "0", 0, math.MaxUint16, "their port; 0: off", setHealthzPort),
		{Name: "log-format", Arg: "text|json", Def: "text", Set: setLogFormat, Help: "how log lines are written"},
		flags.Text("log-file", "FILE", "", "write the log there instead of to stderr; at 10 MiB it becomes FILE.1",
			func(o *options) *string { return &o.LogFile }),
		flags.Int("v", "LEVEL", "0", 0, 10, "log more; 0 to 10", func(o *options, n int) { o.Verbosity = n }),
		flags.Text("vmodule", "FILE=LEVEL,…", "", "likewise, for single source files", func(o *options) *string { return &o.VModule }),
		flags.Text("log_backtrace_at", "FILE:LINE", "", "log a stack trace at this line", func(o *options) *string { return &o.LogBacktraceAt }),
		flags.LineOnly(flags.Bool("version", "false", "print the version and exit", func(o *options) *bool { return &o.Version })),
		flags.LineOnly(flags.Bool("help", "false", "print this and exit", func(o *options) *bool { return &o.Help })),
	}
}

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
