package main

import (
	"fmt"
	"math"
	"net/netip"
	"regexp"
	"time"

	"flannel/pkg/conf"
	"flannel/pkg/status/metrics"
	"flannel/subnet"
)

// Flags with flannel's names have its meanings and defaults, because manifests and
// unit files of flannel are used unchanged.

// flagRow is a row in the table of the daemon's flags.
type flagRow = conf.Flag[options]

// flagTable returns the table of the daemon's flags. A new flag needs one row,
// in one of these groups. A Set is also called with Def if the flag is not given (see
// conf.Flag). systemPath adds the drive on Windows.
func flagTable() []conf.FlagGroup[options] {
	return []conf.FlagGroup[options]{
		{Title: "Leases in etcd", Flags: etcdFlags()},
		{Title: "Leases in Kubernetes", Flags: kubeFlags()},
		{Title: "Underlay: the interface that connects the nodes; default: that of the default route", Flags: underlayFlags()},
		{Title: "Network of this node", Flags: networkFlags()},
		{Title: "CNI plugin: installed, and restored while the daemon runs; see also install-cni", Flags: cniFlags()},
		{Title: "Health and logs", Flags: healthFlags()},
	}
}

// The functions below return the rows of one group each. The functions set… are in values.go.

func etcdFlags() []flagRow {
	return []flagRow{
		{Name: "etcd-endpoints", Arg: "URL,...", Def: "http://127.0.0.1:4001,http://127.0.0.1:2379", Set: setEndpoints,
			Help: "etcd servers"},
		{Name: "etcd-prefix", Arg: "PATH", Def: "/coreos.com/network", Set: setPrefix,
			Help: "prefix of the keys of the configuration and the leases"},
		conf.TextFlag("etcd-cafile", "FILE", "", "CA certificates that the servers' certificates must be signed by", func(o *options) *string { return &o.Etcd.CAFile }),
		conf.TextFlag("etcd-certfile", "FILE", "", "client certificate", func(o *options) *string { return &o.Etcd.CertFile }),
		conf.TextFlag("etcd-keyfile", "FILE", "", "key of the client certificate", func(o *options) *string { return &o.Etcd.KeyFile }),
		conf.TextFlag("etcd-username", "NAME", "", "user name", func(o *options) *string { return &o.Etcd.Username }),
		{Name: "etcd-password", Arg: "TEXT", Help: "password of the user; prefer the environment variable, because other processes can see the command line",
			Set: func(o *options, v string) error { o.Etcd.Password = conf.NewSecret(v); return nil }},
		conf.IntFlag("subnet-lease-renew-margin", "MINUTES", "60", 1, 1439, "renew the lease (24 h) this long before it expires",
			func(o *options, n int) { o.Etcd.RenewMargin = time.Duration(n) * time.Minute }),
	}
}

func kubeFlags() []flagRow {
	return []flagRow{
		conf.BoolFlag("kube-subnet-mgr", "false", "keep leases in the Kubernetes API instead of etcd", func(o *options) *bool { return &o.Kube.On }),
		{Name: "kube-api-url", Arg: "URL", Set: setAPIURL, Help: "API server; default: that of the kubeconfig or of the pod's service account"},
		conf.TextsFlag("kube-api-from", "FILE", "kubeconfig from which only the API server's address is used; the first file that exists and has one is used, --kube-api-url takes precedence",
			func(o *options) *[]string { return &o.Kube.APIFrom }),
		conf.TextFlag("kubeconfig-file", "FILE", "", "kubeconfig; default: the pod's service account", func(o *options) *string { return &o.Kube.Kubeconfig }),
		{Name: "kube-annotation-prefix", Arg: "TEXT", Def: "flannel.alpha.coreos.com", Set: setAnnotationPrefix,
			Help: "prefix of our annotations on the Node"},
		conf.TextFlag("net-config-path", "FILE", systemPath("/etc/kube-flannel/net-conf.json"), "the network configuration", func(o *options) *string { return &o.Kube.NetConfPath }),
		conf.BoolFlag("set-node-network-unavailable", "true", "set the Node's condition NetworkUnavailable to False once the network is up to date",
			func(o *options) *bool { return &o.Kube.SetNetworkUnavailable }),
	}
}

func underlayFlags() []flagRow {
	return []flagRow{
		conf.TextsFlag("iface", "NAME|IP", "interface to use, by name or address; tried in order", func(o *options) *[]string { return &o.Underlay.Iface }),
		{Name: "iface-regex", Arg: "REGEX", Repeat: true, Set: setIfaceRegex,
			Help: "likewise, tried after all --iface; matched against addresses first, then names"},
		{Name: "iface-can-reach", Arg: "IP", Set: setCanReach, Help: "likewise, if none of the above matches an interface: use the interface and source address of the route to IP"},
		{Name: "public-ip", Arg: "IP", Set: setPublicV4, Help: "IPv4 address that is published to the other nodes; default: the interface's. Without the flags above it selects the interface that has this address, if there is one"},
		{Name: "public-ipv6", Arg: "IP", Set: setPublicV6, Help: "likewise for IPv6"},
		{Name: "tunnel-source", Arg: "IP,...", Repeat: true, Set: setTunnelSources,
			Help: "addresses from which the other nodes get packets of this node's tunnel, if a NAT translates them to others than the published ones (vxlan)"},
	}
}

func networkFlags() []flagRow {
	return []flagRow{
		{Name: "subnet-file", Arg: "FILE", Def: systemPath("/run/flannel/subnet.env"), Set: setSubnetFile, Help: "file that passes the subnet to the CNI plugin"},
		conf.BoolFlag("ip-masq", "false", "masquerade traffic that leaves the pod network", func(o *options) *bool { return &o.IPMasq }),
		// This flag and config-follow set an option that has the opposite meaning.
		{Name: "ip-masq-fully-random-disable", Def: "false", Help: "masquerade without --random-fully",
			Set: func(o *options, v string) error { b, err := conf.ParseBool(v); o.RandomFully = !b; return err }},
		conf.BoolFlag("iptables-forward-rules", "true", "accept forwarded traffic of the pod network", func(o *options) *bool { return &o.ForwardRules }),
		conf.IntFlag("iptables-resync", "SECONDS", "5", 1, 86400, "interval of comparing the firewall rules with the desired ones",
			func(o *options, n int) { o.FirewallResync = time.Duration(n) * time.Second }),
		// See subnet.IsMass for the share. Nodes restore their own leases within a fifth of the time.
		conf.IntFlag("retain-peers", "SECONDS", "300", 0, 86400, "how long to retain peers if more than max(3, 20 %) of them are deleted from the store within this time; 0: do not retain",
			func(o *options, n int) { o.RetainPeers = time.Duration(n) * time.Second }),
		{Name: "config-follow", Def: "true", Help: "adopt changes of the network configuration; false: use the one that was read at the start",
			Set: func(o *options, v string) error { b, err := conf.ParseBool(v); o.KeepConfig = !b; return err }},
		// The default is as long as kubeletSkew.
		{Name: "config-stagger", Arg: "DURATION", Def: "2m", Set: setStagger,
			Help: "for a change that disconnects old from new nodes (backend, VNI, port): how long two nodes try it before the others adopt it; 0: all adopt it at once"},
		{Name: "guard", Arg: "off|audit|enforce", Set: setGuard,
			Help: "packets into the pod network that no node or pod would send: accept, count, or drop them; default: Guard in the network configuration, or audit"},
		conf.BoolFlag("ip-blackhole-route", "false", "drop traffic to addresses of this node's subnet that no pod has", func(o *options) *bool { return &o.BlackholeOwn }),
	}
}

func cniFlags() []flagRow {
	return []flagRow{
		conf.TextFlag("cni-conf-from", "FILE", "", "configuration list to install", func(o *options) *string { return &o.CNI.ConfFrom }),
		conf.TextFlag("cni-conf-to", "FILE", "", "where to install it; plugins that others added there are kept", func(o *options) *string { return &o.CNI.ConfTo }),
		conf.TextFlag("cni-plugin-from", "FILE", "", "plugin to install, or a directory of plugins", func(o *options) *string { return &o.CNI.PluginFrom }),
		conf.TextFlag("cni-plugin-to", "FILE", "", "where to install it; default: where containerd looks, see cni-dirs", func(o *options) *string { return &o.CNI.PluginTo }),
		conf.BoolFlag("cni-plugin-replace", "false", "replace an installed plugin that is newer, or of another maker", func(o *options) *bool { return &o.CNI.ReplacePlugin }),
	}
}

func healthFlags() []flagRow {
	return []flagRow{
		{Name: "healthz-ip", Arg: "IP", Def: "0.0.0.0", Set: setHealthzIP, Help: "address of /healthz, /readyz and /metrics"},
		conf.IntFlag("healthz-port", "PORT", "0", 0, math.MaxUint16, "port of /healthz, /readyz and /metrics; 0: disabled",
			func(o *options, n int) { o.Healthz = netip.AddrPortFrom(o.Healthz.Addr(), uint16(n)) }),
		conf.BoolFlag("probe", "true", "about once a second, ask a peer for an answer through the pod network, and report peers that do not answer (Linux)",
			func(o *options) *bool { return &o.Probe }),
		conf.BoolFlag("peer-metrics", "false", fmt.Sprintf("metrics of each peer that is probed, up to %d peers", metrics.MaxPeers),
			func(o *options) *bool { return &o.PeerMetrics }),
		{Name: "log-format", Arg: "text|json", Def: "text", Set: setLogFormat, Help: "format of log lines"},
		conf.TextFlag("log-file", "FILE", "", "write the log to FILE instead of stderr; at 10 MiB it is renamed to FILE.1",
			func(o *options) *string { return &o.Logging.File }),
		conf.IntFlag("v", "LEVEL", "0", 0, 10, "verbosity of the log, from 0 to 10; from 4 on it has decisions and requests", func(o *options, n int) { o.Logging.Verbosity = n }),
		conf.TextFlag("vmodule", "FILE=LEVEL,...", "", "likewise, for single source files", func(o *options) *string { return &o.Logging.VModule }),
		conf.TextFlag("log_backtrace_at", "FILE:LINE", "", "log a stack trace at this line", func(o *options) *string { return &o.Logging.LogBacktraceAt }),
		// LineOnly: they have no environment variable.
		conf.LineOnly(conf.BoolFlag("version", "false", "print the version and exit", func(o *options) *bool { return &o.Version })),
		conf.LineOnly(conf.BoolFlag("help", "false", "print this and exit", func(o *options) *bool { return &o.Help })),
	}
}

// setGuard leaves the choice to the network configuration if v is empty. It is empty if the
// flag is not given, since the flag has no default.
func setGuard(o *options, v string) (err error) {
	if v == "" {
		o.Guard = ""
		return nil
	}
	o.Guard, err = subnet.ParseGuard(v)
	return err
}

// setIfaceRegex adds a regular expression. An empty one would match every interface,
// and is ignored.
func setIfaceRegex(o *options, v string) error {
	re, err := regexp.Compile(v)
	if err != nil {
		return fmt.Errorf("invalid regular expression %.60q: %w", v, err)
	}
	if v != "" {
		o.Underlay.IfaceRegex = append(o.Underlay.IfaceRegex, re)
	}
	return nil
}
