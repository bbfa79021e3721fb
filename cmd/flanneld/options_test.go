package main

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"flannel/internal/test/logtest"
	"flannel/pkg/conf"
)

// look shows options as one text, with regular expressions and the password as what they are.
func look(o options) string {
	var b strings.Builder
	fmt.Fprintf(&b, "etcd %v %s key=%s cert=%s ca=%s user=%s password=%s margin=%v\n", o.Etcd.Endpoints, o.Etcd.Prefix, o.Etcd.KeyFile,
		o.Etcd.CertFile, o.Etcd.CAFile, o.Etcd.Username, o.Etcd.Password.Reveal(), o.Etcd.RenewMargin)
	fmt.Fprintf(&b, "kube %t api=%s from=%v kubeconfig=%s annotations=%s conf=%s unavailable=%t\n", o.Kube.On, o.Kube.APIURL, o.Kube.APIFrom, o.Kube.Kubeconfig,
		o.Kube.AnnotationPrefix, o.Kube.NetConfPath, o.Kube.SetNetworkUnavailable)
	fmt.Fprintf(&b, "underlay iface=%v regex=%v reach=%v public=%v,%v sources=%v\n", o.Underlay.Iface, o.Underlay.IfaceRegex, o.Underlay.CanReach,
		o.Underlay.PublicV4, o.Underlay.PublicV6, o.TunnelSources)
	fmt.Fprintf(&b, "network file=%s masq=%t random=%t forward=%t blackhole=%t resync=%v retain=%v keepconfig=%t stagger=%v guard=%s probe=%t,%t\n", o.SubnetFile, o.IPMasq, o.RandomFully,
		o.ForwardRules, o.BlackholeOwn, o.FirewallResync, o.RetainPeers, o.KeepConfig, o.ConfigStagger, o.Guard, o.Probe, o.PeerMetrics)
	fmt.Fprintf(&b, "cni %v\n", o.CNI)
	fmt.Fprintf(&b, "health %v log=%s,%s v=%d vmodule=%s at=%s version=%t help=%t\n", o.Healthz, o.Logging.Format, o.Logging.File, o.Logging.Verbosity, o.Logging.VModule, o.Logging.LogBacktraceAt,
		o.Version, o.Help)
	fmt.Fprintf(&b, "command %q %q", o.Command, o.Args)
	return b.String()
}

func TestDefaults(t *testing.T) {
	want := `etcd [http://127.0.0.1:4001 http://127.0.0.1:2379] /coreos.com/network key= cert= ca= user= password= margin=1h0m0s
kube false api= from=[] kubeconfig= annotations=flannel.alpha.coreos.com/ conf=` + systemPath("/etc/kube-flannel/net-conf.json") + ` unavailable=true
underlay iface=[] regex=[] reach=invalid IP public=invalid IP,invalid IP sources=[]
network file=` + systemPath("/run/flannel/subnet.env") + ` masq=false random=true forward=true blackhole=false resync=5s retain=5m0s keepconfig=false stagger=2m0s guard= probe=true,false
cni {    false}
health 0.0.0.0:0 log=text, v=0 vmodule= at= version=false help=false
command "" []`
	o, err := parseOptions(nil, nil)
	if err != nil || len(o.Warnings) > 0 {
		t.Fatal(err, o.Warnings)
	}
	if d := cmp.Diff(want, look(o)); d != "" {
		t.Error(d)
	}
}

// everything sets every flag to something other than its default.
var everything = []string{
	"etcd-endpoints=https://10.0.0.1:2379/, https://etcd.example:2379", "etcd-prefix=/a/b/", "etcd-keyfile=k", "etcd-certfile=c", "etcd-cafile=ca",
	"etcd-username=u", "etcd-password=p=w", "subnet-lease-renew-margin=1439", "kube-subnet-mgr=1", "kube-api-url=https://10.0.0.9:6443",
	"kube-api-from=kl", "kubeconfig-file=c:\\k\\config", "kube-annotation-prefix=example.com/net", "net-config-path=n", "set-node-network-unavailable=false",
	"iface=eth0", "iface-regex=^10\\.", "iface-can-reach=9.9.9.9", "public-ip=192.0.2.1", "public-ipv6=2001:db8::1", "tunnel-source=192.0.2.8, 2001:db8::8", "subnet-file=s", "ip-masq=1",
	"ip-masq-fully-random-disable=true", "iptables-forward-rules=0", "iptables-resync=0x10", "retain-peers=90", "ip-blackhole-route=T", "config-follow=0", "config-stagger=1m30s", "guard=enforce", "probe=0", "peer-metrics=1", "healthz-ip=::1", "healthz-port=8080",
	"cni-conf-from=cf", "cni-conf-to=ct", "cni-plugin-from=pf", "cni-plugin-to=pt", "cni-plugin-replace=1", "log-format=json", "log-file=l", "v=4", "vmodule=a=1,b=2", "log_backtrace_at=a.go:7",
}

const everythingElse = `etcd [https://10.0.0.1:2379 https://etcd.example:2379] /a/b key=k cert=c ca=ca user=u password=p=w margin=23h59m0s
kube true api=https://10.0.0.9:6443 from=[kl] kubeconfig=c:\k\config annotations=example.com/net- conf=n unavailable=false
underlay iface=[eth0] regex=[^10\.] reach=9.9.9.9 public=192.0.2.1,2001:db8::1 sources=[192.0.2.8 2001:db8::8]
network file=s masq=true random=false forward=false blackhole=true resync=16s retain=1m30s keepconfig=true stagger=1m30s guard=enforce probe=false,true
cni {cf ct pf pt true}
health [::1]:8080 log=json,l v=4 vmodule=a=1,b=2 at=a.go:7 version=false help=false
command "" []`

// TestEveryFlag gives every flag in every way: one dash, two, the value apart, as a variable, and as both.
func TestEveryFlag(t *testing.T) {
	var two, one, apart, env, wrong []string
	for _, e := range everything {
		name, value, _ := strings.Cut(e, "=")
		two, one = append(two, "--"+e), append(one, "-"+e)
		if value == "1" || value == "0" || value == "T" || value == "true" || value == "false" {
			apart = append(apart, "--"+e) // a boolean takes no argument of its own
		} else {
			apart = append(apart, "--"+name, value)
		}
		env = append(env, conf.FlagVariable(name)+"="+value)
		wrong = append(wrong, conf.FlagVariable(name)+"=") // empty counts as absent
	}
	for name, c := range map[string]struct{ args, env []string }{
		"two dashes": {two, nil}, "one dash": {one, nil}, "apart": {apart, nil}, "environment": {nil, env}, "empty environment": {two, wrong},
		"both": {two, []string{"FLANNELD_IFACE=eth7", "FLANNELD_IFACE_REGEX=(", "FLANNELD_V=99", "FLANNELD_HEALTHZ_PORT=x", "OTHER=1", "broken"}},
	} {
		t.Run(name, func(t *testing.T) {
			o, err := parseOptions(c.args, c.env)
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(everythingElse, look(o)); d != "" {
				t.Error(d)
			}
		})
	}
	// A flag that is not in the list above was forgotten there.
	for _, g := range flagTable() {
		for _, f := range g.Flags {
			if !f.NoEnv && !slices.ContainsFunc(everything, func(e string) bool { return strings.HasPrefix(e, f.Name+"=") }) {
				t.Errorf("--%s is not tested", f.Name)
			}
		}
	}
}

func TestForms(t *testing.T) {
	for _, c := range []struct {
		args, env, part string // part of what look shows, or after "!" what the error names
	}{
		{"--ip-masq", "", "masq=true"},
		{"-ip-masq --kube-subnet-mgr", "", "kube true"},
		{"--ip-masq=false", "FLANNELD_IP_MASQ=true", "masq=false"},
		{`--kubeconfig-file=c:\k\config --iface=10.0.0.5 --ip-masq=1 --kube-subnet-mgr=1`, "", "iface=[10.0.0.5]"},
		{"--iface=a -iface b --iface-regex=x --iface-regex=y", "", "iface=[a b] regex=[x y]"},
		{"--iface=a", "FLANNELD_IFACE=b", "iface=[a] regex"},
		{"--public-ip=169.254.1.1 --public-ipv6=fe80::1", "", "public=169.254.1.1,fe80::1"}, // flannel's nodes may reach it there
		{"--iface= --public-ip= --iface-regex= --iface-can-reach= --kube-api-url=", "", "iface=[] regex=[] reach=invalid IP public=invalid IP"},
		{"--healthz-port=1 --healthz-port=2", "", "health 0.0.0.0:2"},
		{"--healthz-port=9 --healthz-ip=localhost", "", "health 127.0.0.1:9"},
		{"--healthz-ip=", "", "health 0.0.0.0:0"},
		{"--healthz-port", "", "!--healthz-port: --healthz-port=PORT"},
		{"--version", "", "version=true"},
		{"-h --nonsense", "", "help=true"},
		{"--help --healthz-port=x", "", "help=true"},
		{"", "FLANNELD_VERSION=v0.28.9 FLANNELD_HELP=1", "version=false help=false"},
		{"--iface=a cleanup --dry-run x", "", `command "cleanup" ["--dry-run" "x"]`},
		{"-- cleanup", "", `command "cleanup" []`},
		{"service install -- --v=4", "FLANNELD_V=1", `command "service" ["install" "--" "--v=4"]`},
		{"--v=4 service install", "", "!-- --kube-subnet-mgr"},
		{"clean", "", `!"clean" cleanup`},
		{"xyzzy", "", `!"xyzzy" status accept-withdrawal doctor wait install-cni cleanup version help completion`},
		{"--iface=a --json -v=1 status", "", "!--json: status"}, {"-json status --timeout=1s", "", "!--json: status"}, {"-json service start", "", "!--json: service start"},
		{"--kube-subnet-mgr=x help status", "", `command "help" ["status"]`}, {"--v=99 version", "", `command "version" []`},
		{"- x", "", `!"-"`},
		{"--ip-masq true", "", `!"true" --ip-masq=true`},
		{"--ifcae=eth0 --v=99", "", "!--ifcae: --iface"},
		{"--etcd-endpoint=x", "", "!--etcd-endpoints"},
		{"---iface=x", "", "!---iface:"},
		{"--xyzzy", "", "!--xyzzy: --help"},
		{"--=x", "", "!--: --help"},
	} {
		o, err := parseOptions(strings.Fields(c.args), strings.Fields(c.env))
		want, wrong := strings.CutPrefix(c.part, "!")
		if wrong && (err == nil || !logtest.Names(err.Error(), strings.Fields(want)...)) {
			t.Errorf("%s %s:\n%v\nlacks %s", c.env, c.args, err, want)
		}
		if got := look(o); !wrong && (err != nil || !strings.Contains(got, want)) {
			t.Errorf("%s %s: %v\n%s\nlacks %s", c.env, c.args, err, got, want)
		}
	}
}

func TestImpossible(t *testing.T) {
	for arg, want := range map[string]string{
		"--healthz-port=70000":                   "--healthz-port: 70000 65535 0",
		"--healthz-port=-1":                      "--healthz-port: -1 0 65535",
		"--healthz-port=http":                    `--healthz-port: "http" 0 65535`,
		"--healthz-port=99999999999999999":       "--healthz-port: 99999999999999999 65535 0",
		"--healthz-port=99999999999999999999":    "--healthz-port: 99999999999999999999 65535 0",
		"--healthz-ip=host":                      `--healthz-ip: "host" IP`,
		"--config-stagger=2":                     `--config-stagger: "2" 0 24h 2m`,
		"--subnet-lease-renew-margin=0":          "--subnet-lease-renew-margin: 0 1 1439",
		"--subnet-lease-renew-margin=1440":       "--subnet-lease-renew-margin: 1440 1439 1",
		"--iptables-resync=0":                    "--iptables-resync: 0 1 86400",
		"--v=11":                                 "--v: 11 10 0",
		"--ip-masq=yes":                          `--ip-masq: "yes" true false`,
		"--ip-masq-fully-random-disable=on":      `--ip-masq-fully-random-disable: "on" true false`,
		"--public-ip=fd05::1":                    "--public-ip: fd05::1 IPv6 --public-ipv6",
		"--public-ipv6=10.0.0.1":                 "--public-ipv6: 10.0.0.1 IPv4 --public-ip",
		"--public-ipv6=::ffff:10.0.0.1":          "--public-ipv6: 10.0.0.1 IPv4 --public-ip",
		"--public-ip=10.0.0.1/24":                `--public-ip: "10.0.0.1/24" IP`,
		"--public-ip=0.0.0.0":                    "--public-ip: 0.0.0.0",
		"--public-ip=255.255.255.255":            "--public-ip: 255.255.255.255",
		"--public-ipv6=ff02::1":                  "--public-ipv6: ff02::1",
		"--public-ipv6=fe80::1%eth0":             `--public-ipv6: "fe80::1%eth0" IP`,
		"--iface-can-reach=example.com":          `--iface-can-reach: "example.com" IP`,
		"--iface-regex=(":                        "--iface-regex: \"(\" `(`",
		"--subnet-file=":                         "--subnet-file: " + systemPath("/run/flannel/subnet.env"),
		"--etcd-prefix=/":                        `--etcd-prefix: "/" /coreos.com/network`,
		"--etcd-prefix=/.":                       `--etcd-prefix: "/." /coreos.com/network`,
		"--etcd-prefix=/..":                      `--etcd-prefix: "/.." /coreos.com/network`,
		"--etcd-prefix=/a/..":                    `--etcd-prefix: "/a/.." /coreos.com/network`,
		"--etcd-prefix=.":                        `--etcd-prefix: "." /coreos.com/network`,
		"--etcd-prefix=../a":                     `--etcd-prefix: "../a" /coreos.com/network`,
		"--etcd-endpoints=http://10.0.0.1:23x79": `--etcd-endpoints: "http://10.0.0.1:23x79" invalid port :23x79`,
		"--etcd-endpoints=http://10.0.0.%1:2379": `--etcd-endpoints: "http://10.0.0.%1:2379" invalid URL escape`,
		"--etcd-endpoints=10.0.0.1:23x79":        `--etcd-endpoints: "10.0.0.1:23x79" invalid port :23x79`,
		"--etcd-endpoints=http://[fd00::1:2379":  `--etcd-endpoints: "http://[fd00::1:2379" missing ]`,
		"--kube-api-url=https://10.0.0.1:x":      `--kube-api-url: "https://10.0.0.1:x" invalid port :x`,
		"--kube-api-url=https://u:hunter2@a:x":   "--kube-api-url: URL API https://10.0.0.1:6443",
		"--etcd-endpoints=":                      "--etcd-endpoints: http://127.0.0.1:2379",
		"--etcd-endpoints=127.0.0.1":             `--etcd-endpoints: "127.0.0.1" http://127.0.0.1:2379`,
		"--etcd-endpoints=unix:///run/etcd":      `--etcd-endpoints: "unix:///run/etcd" http:// https:// http://127.0.0.1:2379`,
		"--etcd-endpoints=http://etcd":           `--etcd-endpoints: "http://etcd" http://127.0.0.1:2379`,
		"--etcd-endpoints=http://:2379":          `--etcd-endpoints: "http://:2379" http://127.0.0.1:2379`,
		"--etcd-endpoints=http://a:0":            `--etcd-endpoints: "http://a:0" 1 65535`,
		"--etcd-endpoints=http://a:1/v2":         `--etcd-endpoints: "http://a:1/v2" http://a:1`,
		"--etcd-endpoints=http://u:hunter2@a:1":  "--etcd-endpoints: --etcd-username --etcd-password",
		"--kube-api-url=10.0.0.1":                "--kube-api-url: URL API https://10.0.0.1:6443",
		"--kube-annotation-prefix=a/b/c":         `--kube-annotation-prefix: "a/b/c" /`,
		"--log-format=xml":                       `--log-format: "xml" text json`,
		"--etcd-certfile=c":                      "--etcd-certfile: --etcd-keyfile",
		"--etcd-keyfile=k":                       "--etcd-keyfile: --etcd-certfile",
		"--etcd-username=u":                      "--etcd-username: --etcd-password",
		"--etcd-password=hunter2":                "--etcd-password: --etcd-username",
	} {
		if _, err := parseOptions([]string{arg}, nil); err == nil || !logtest.Lines(err.Error(), want) {
			t.Errorf("%s: %v\nwant %s", arg, err, want)
		}
		// The same as a variable.
		name, value, _ := strings.Cut(strings.TrimPrefix(arg, "--"), "=")
		if value == "" {
			continue
		}
		want = strings.Replace(want, "--"+name, conf.FlagVariable(name), 1)
		if _, err := parseOptions(nil, []string{conf.FlagVariable(name) + "=" + value}); err == nil || !logtest.Lines(err.Error(), want) {
			t.Errorf("%s: %v\nwant %s", conf.FlagVariable(name), err, want)
		}
	}
	_, err := parseOptions([]string{"--healthz-port=x", "--v=11", "--etcd-keyfile=k", "--public-ip=x", "--public-ip=1.2.3.4"}, []string{"FLANNELD_LOG_FORMAT=xml"})
	if n := strings.Count(fmt.Sprint(err), "\n") + 1; n != 5 {
		t.Errorf("%d problems of 5 at once:\n%v", n, err)
	}
}

func TestAnnotationPrefix(t *testing.T) {
	for in, want := range map[string]string{
		"flannel.alpha.coreos.com": "flannel.alpha.coreos.com/", "example.com/": "example.com/", "example.com/net": "example.com/net-",
		"example.com/net-": "example.com/net-", "a": "a/",
		"": "", "/": "", "a/b/c": "", "/x": "", "a b": "", "a/-": "", "A.com": "", "a/" + strings.Repeat("x", 60): "", "a\n": "",
	} {
		got, err := annotationPrefix(in)
		if got != want || (err == nil) != (want != "") {
			t.Errorf("%q: %q, %v, want %q", in, got, err, want)
		}
	}
}

func TestOptionWarnings(t *testing.T) {
	for _, c := range []struct{ args, env, want string }{
		{"--kube-subnet-mgr --etcd-prefix=/x", "FLANNELD_ETCD_USERNAME=u FLANNELD_ETCD_PASSWORD=hunter2",
			"--etcd-prefix: --kube-subnet-mgr|FLANNELD_ETCD_USERNAME: --kube-subnet-mgr|" +
				"FLANNELD_ETCD_PASSWORD: --kube-subnet-mgr"},
		{"--kubeconfig-file=x --kube-subnet-mgr=false", "", "--kubeconfig-file: --kube-subnet-mgr"},
		{"--iface=eth0 --iface-can-reach=9.9.9.9", "", ""},
		{"--etcd-prefix=/a//b/", "", ""},
		{"--etcd-prefix=a/b/", "", `--etcd-prefix: "a/b/" "/a/b"`},
		{"", "FLANNELD_IFCAE=secret FLANNELD_PORT=tcp://10.0.0.1:80 FLANNELD_=x FLANNELD FLANNELD_VERSION=v1 NODE_NAME=x FLANNELD_EMPTY=",
			"FLANNELD_:|FLANNELD_IFCAE: FLANNELD_IFACE|" +
				"FLANNELD_PORT:|FLANNELD_VERSION:"},
	} {
		o, err := parseOptions(strings.Fields(c.args), strings.Fields(c.env))
		if err != nil {
			t.Error(err)
		}
		if !logtest.Lines(strings.Join(o.Warnings, "\n"), strings.ReplaceAll(c.want, "|", "\n")) {
			t.Errorf("%q, want lines with %q", o.Warnings, c.want)
		}
	}
}

func FuzzOptions(f *testing.F) {
	for _, s := range []string{"--iface\neth0\n--v=3", "-h", "--\ncleanup\n-x", "--etcd-endpoints=http://[::1]:2379,http://a:1", "--iface-regex=[", "-ip-masq=1\n--healthz-ip=::"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		o, err := parseOptions(strings.Split(s, "\n"), nil)
		if err != nil || o.Help || o.Version {
			return
		}
		if len(o.Etcd.Endpoints) == 0 || !strings.HasPrefix(o.Etcd.Prefix, "/") || o.FirewallResync < time.Second || !o.Healthz.Addr().IsValid() ||
			o.Etcd.RenewMargin < time.Minute || o.Kube.AnnotationPrefix == "" || o.SubnetFile == "" {
			t.Errorf("accepted: %s", look(o))
		}
	})
}

func TestBareEndpoints(t *testing.T) {
	for _, test := range []struct{ args, want string }{
		{"--etcd-endpoints=10.0.0.1:2379,https://b:1", "http://10.0.0.1:2379,https://b:1"},
		{"--etcd-endpoints=10.0.0.1:2379 --etcd-cafile=ca", "https://10.0.0.1:2379"},
		{"--etcd-endpoints=[fd00::1]:2379", "http://[fd00::1]:2379"},
	} {
		o, err := parseOptions(strings.Fields(test.args), nil)
		if got := strings.Join(o.Etcd.Endpoints, ","); err != nil || got != test.want {
			t.Errorf("%s gives %s, %v; want %s", test.args, got, err, test.want)
		}
	}
}
