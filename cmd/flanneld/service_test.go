package main

import (
	"fmt"
	"log/slog"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"flannel/pkg/flags"
	"flannel/pkg/winservice"
)

func TestParseInstall(t *testing.T) {
	const exe = `C:\Program Files\k\flanneld.exe`
	const logs = `--log-file=C:\var\log\flanneld\flanneld.log`
	for _, c := range []struct {
		args []string
		want []string // command, then variables
		fail string   // all that the error says, lines joined by "|"
	}{
		{nil, []string{exe, logs, "service", "run"}, ""},
		{[]string{"--"}, []string{exe, logs, "service", "run"}, ""},
		{
			[]string{"--env", "NODE_NAME=w1", "--env=A=b=c d", "--", `--kubeconfig-file=c:\k\config`, "--iface=vEthernet (Ethernet 2)", "--ip-masq=1", "--kube-subnet-mgr=1"},
			[]string{exe, `--kubeconfig-file=c:\k\config`, "--iface=vEthernet (Ethernet 2)", "--ip-masq=1", "--kube-subnet-mgr=1", logs, "service", "run",
				"NODE_NAME=w1", "A=b=c d"}, "",
		},
		{
			[]string{"--env=NODE_NAME=a", "--env=Other=", "--env=node_name=b", "--", "-log-file="},
			[]string{exe, "-log-file=", "service", "run", "Other=", "node_name=b"}, "",
		},
		{
			[]string{"--env=FLANNELD_LOG_FILE=D:/l", "--", "--v=4"},
			[]string{exe, "--v=4", "service", "run", "FLANNELD_LOG_FILE=D:/l"}, "",
		},
		{[]string{"--env=FLANNELD_KUBE_SUBNET_MGR=1"}, nil, "--kube-subnet-mgr needs the node's name: add --env NODE_NAME=…, before --"},
		{[]string{"--kube-subnet-mgr"}, nil, "flag provided but not defined: -kube-subnet-mgr; the daemon's flags come after --, as in: flanneld service install -- --kube-subnet-mgr"},
		{[]string{"--env=x", "--"}, nil, `invalid value "x" for flag -env: "x" is not of the form NAME=VALUE; the daemon's flags come after --, as in: flanneld service install -- --kube-subnet-mgr`},
		{[]string{"--", "--ifcae=x"}, nil, "--ifcae: unknown flag; did you mean --iface?"},
		{[]string{"--", "--version"}, nil, "what follows -- are flags of the daemon, and no command"},
		{[]string{"--", "cleanup"}, nil, "what follows -- are flags of the daemon, and no command"},
		{
			[]string{"--env=FLANNELD_HEALTHZ_PORT=x", "--", "--subnet-file=subnet.env", "--log-file=c:log", "--iface=%COMPUTERNAME%"}, nil,
			`FLANNELD_HEALTHZ_PORT: "x" is no whole number; use 0 to 65535|"c:log": a service starts in a folder of its own; give the whole path|` +
				`"subnet.env": a service starts in a folder of its own; give the whole path|` +
				`"--iface=%COMPUTERNAME%": Windows replaces what stands between two %; give the flag as a variable by --env`,
		},
	} {
		got, err := winservice.ParseInstall(exe, c.args, asService)
		fail := ""
		if err != nil {
			fail = strings.ReplaceAll(err.Error(), "\n", "|")
		}
		if d := cmp.Diff(c.want, append(got.Command, got.Env...)) + cmp.Diff(c.fail, fail); d != "" {
			t.Errorf("%q: %s", c.args, d)
		}
	}
}

func TestServiceStart(t *testing.T) {
	for _, start := range []bool{true, false} {
		if got, err := winservice.ParseInstall("/k/flanneld.exe", []string{fmt.Sprintf("--start=%t", start), "--", "--v=4"}, asService); err != nil || got.Start != start {
			t.Errorf("%+v, %v; want %t", got, err, start)
		}
	}
}

func TestServiceCommand(t *testing.T) {
	for args, want := range map[string]string{
		"":        `service: "" is none of install, uninstall, start, stop and status; see flanneld service --help`,
		"restart": `service: "restart" is none of`,
		"start x": `service start takes no argument "x"`,
	} {
		var out strings.Builder
		err := winservice.Command(t.Context(), strings.Fields(args), asService, slog.New(slog.DiscardHandler), &out)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", args, err, want)
		}
	}
	for _, args := range []string{"--help", "-h", "install --help"} {
		var out strings.Builder
		if err := winservice.Command(t.Context(), strings.Fields(args), asService, slog.New(slog.DiscardHandler), &out); err != nil || out.String() != winservice.Usage {
			t.Errorf("%s: %v\n%s", args, err, &out)
		}
	}
	for line := range strings.Lines(winservice.Usage) {
		if len(line) > flags.HelpWidth+1 {
			t.Errorf("too long: %s", line)
		}
	}
	if runtime.GOOS != "windows" {
		if err := winservice.Command(t.Context(), []string{"start"}, asService, slog.New(slog.DiscardHandler), &strings.Builder{}); err == nil || !strings.Contains(err.Error(), "systemd") {
			t.Error(err)
		}
	}
}
