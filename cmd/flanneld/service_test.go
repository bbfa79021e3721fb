package main

import (
	"fmt"
	"log/slog"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"flannel/pkg/logtest"
	"flannel/pkg/winservice"
)

func TestParseInstall(t *testing.T) {
	const exe = `C:\Program Files\k\flanneld.exe`
	const logs = `--log-file=C:\var\log\flanneld\flanneld.log`
	for _, c := range []struct {
		args []string
		want []string // command, then variables
		fail string   // what the lines of the error name, joined by "|"
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
		{[]string{"--env=FLANNELD_KUBE_SUBNET_MGR=1"}, nil, "--kube-subnet-mgr --env NODE_NAME=… --"},
		{[]string{"--kube-subnet-mgr"}, nil, "-kube-subnet-mgr -- --kube-subnet-mgr"},
		{[]string{"--env=x", "--"}, nil, `"x" -env NAME=VALUE -- --kube-subnet-mgr`},
		{[]string{"--", "--ifcae=x"}, nil, "--ifcae: --iface"},
		{[]string{"--", "--version"}, nil, "--"},
		{[]string{"--", "cleanup"}, nil, "--"},
		{
			[]string{"--env=FLANNELD_HEALTHZ_PORT=x", "--", "--subnet-file=subnet.env", "--log-file=c:log", "--iface=%COMPUTERNAME%"}, nil,
			`FLANNELD_HEALTHZ_PORT: "x" 0 65535|"c:log":|` +
				`"subnet.env":|` +
				`"--iface=%COMPUTERNAME%": Windows % --env`,
		},
	} {
		got, err := winservice.ParseInstall(exe, c.args, parseServiceOptions)
		fail := ""
		if err != nil {
			fail = err.Error()
		}
		if d := cmp.Diff(c.want, append(got.Command, got.Env...)); d != "" || (c.fail == "") != (err == nil) ||
			!logtest.Lines(fail, strings.ReplaceAll(c.fail, "|", "\n")) {
			t.Errorf("%q: %s\n%v, want %s", c.args, d, err, c.fail)
		}
	}
}

func TestServiceStart(t *testing.T) {
	for _, start := range []bool{true, false} {
		if got, err := winservice.ParseInstall("/k/flanneld.exe", []string{fmt.Sprintf("--start=%t", start), "--", "--v=4"}, parseServiceOptions); err != nil || got.Start != start {
			t.Errorf("%+v, %v; want %t", got, err, start)
		}
	}
}

func TestServiceCommand(t *testing.T) {
	for args, want := range map[string]string{
		"":        `service "" install uninstall start stop status --help`,
		"restart": `service "restart" install`,
		"start x": `start "x"`,
	} {
		var out strings.Builder
		err := winservice.Command(t.Context(), strings.Fields(args), parseServiceOptions, slog.New(slog.DiscardHandler), &out)
		if err == nil || !logtest.Names(err.Error(), strings.Fields(want)...) {
			t.Errorf("%s: %v, want %s", args, err, want)
		}
	}
	for _, args := range []string{"--help", "-h", "install --help"} {
		var out strings.Builder
		if err := winservice.Command(t.Context(), strings.Fields(args), parseServiceOptions, slog.New(slog.DiscardHandler), &out); err != nil || out.String() != winservice.Usage {
			t.Errorf("%s: %v\n%s", args, err, &out)
		}
	}
	for line := range strings.Lines(winservice.Usage) {
		if len(line) > defaultWidth+1 {
			t.Errorf("too long: %s", line)
		}
	}
	if runtime.GOOS != "windows" {
		if err := winservice.Command(t.Context(), []string{"start"}, parseServiceOptions, slog.New(slog.DiscardHandler), &strings.Builder{}); err == nil || !strings.Contains(err.Error(), "systemd") {
			t.Error(err)
		}
	}
}
