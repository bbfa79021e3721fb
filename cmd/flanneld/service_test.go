package main

import (
	"context"
	"io"
	"log/slog"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"flannel/internal/test/logtest"
	"flannel/pkg/windows/service"
)

// controlled is what a command line made of the service.
type controlled struct {
	verb, stderr string
	config       service.Config
	exit         int
}

// serviceSays runs the command service without a service manager.
func serviceSays(t *testing.T, args ...string) (is controlled) {
	t.Helper()
	control := func(_ context.Context, verb string, config service.Config, _ io.Writer) error {
		is.verb, is.config = verb, config
		return nil
	}
	var stderr strings.Builder
	c := &call{options: options{Command: "service", Args: args}, process: process{stdout: io.Discard, stderr: &stderr}, log: slog.New(slog.DiscardHandler)}
	is.exit = execute(t.Context(), []command{{name: "service", help: "test", below: serviceCommands(control)}}, c)
	is.stderr = strings.TrimSuffix(stderr.String(), "\n")
	return is
}

func TestParseInstall(t *testing.T) {
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
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
		got := serviceSays(t, append([]string{"install"}, c.args...)...)
		wantExit := exitOK
		if c.fail != "" {
			wantExit = exitUsage
		}
		if d := cmp.Diff(c.want, append(got.config.Command, got.config.Env...)); d != "" || got.exit != wantExit ||
			!logtest.Lines(got.stderr, strings.ReplaceAll(c.fail, "|", "\n")) {
			t.Errorf("%q: %s\n%d: %s, want %s", c.args, d, got.exit, got.stderr, c.fail)
		}
	}
}

func TestServiceCommands(t *testing.T) {
	for _, verb := range []string{"start", "stop", "status", "uninstall", "run"} {
		if got := serviceSays(t, verb); got.verb != verb || got.exit != exitOK || got.stderr != "" {
			t.Errorf("%s: %+v", verb, got)
		}
	}
	for args, want := range map[string]bool{"--start": true, "-start": true, "--start=false": false, "-start=0 -env A=--start": false, "-json -start": true} {
		if got := serviceSays(t, append([]string{"install"}, strings.Fields(args+" -- -v=4")...)...); got.config.Start != want || !slices.Contains(got.config.Command, "-v=4") {
			t.Errorf("install %s: %+v", args, got)
		}
	}
	for args, want := range map[string]string{
		"":                       "service install start status stop uninstall",
		"restart":                `service "restart" start`,
		"restart --help":         `service "restart" start`,
		"erase":                  `service "erase" install start status stop uninstall`,
		"start x":                `start "x"`,
		"start -- --v=4":         `start "--v=4"`,
		"start --env=A=b":        "start --env",
		"start --v=4":            "start --v: --help",
		"install now -- --v=4":   `install "now" -- --kube-subnet-mgr`,
		"install --sart -- -v=4": "install --sart --start",
	} {
		if got := serviceSays(t, strings.Fields(args)...); got.exit != exitUsage || got.verb != "" || !logtest.Names(got.stderr, strings.Fields(want)...) {
			t.Errorf("%s: %+v, want %s", args, got, want)
		}
	}
}

// Each command has its own help, which lists its own flags alone, and what follows "--" is completed.
func TestServiceHelp(t *testing.T) {
	for _, c := range []struct{ args, want, lacks string }{
		{"service --help", "flanneld service <command>|install|uninstall|" + service.LogFile, "[flags of the daemon]|--json|  run "},
		{"service install --help", "flanneld service install [flags] -- [flags of the daemon]|--env NAME=VALUE|--start|--json", "flanneld [flags"},
		{"service install -h -- --v=4", "--start", ""},
		{"help service install", "--start", ""},
		{"service status --help", "flanneld service status [flags]\n|--json|  1  it does not run|  2  ", "--start|--peers|  3  "},
		{"service run --help", "service manager", ""},
		{"__complete service in", "install", ""},
		{"__complete service install --st", "--start", "--kube-subnet-mgr"},
		{"__complete service install --start -- --kube-s", "--kube-subnet-mgr", "--iface|--start"},
		{"__complete help service ", "uninstall", "prepare"},
	} {
		args := strings.Fields(c.args)
		if strings.HasSuffix(c.args, " ") {
			args = append(args, "")
		}
		code, out, problems := flanneldSays(t.Context(), args...)
		if code != exitOK || !logtest.Names(out, strings.Split(c.want, "|")...) {
			t.Errorf("%s: %d\n%s%s\nlacks %s", c.args, code, out, problems, c.want)
		}
		for _, no := range strings.Split(c.lacks, "|") {
			if no != "" && strings.Contains(out, no) {
				t.Errorf("%s has %q:\n%s", c.args, no, out)
			}
		}
		for line := range strings.Lines(out) {
			if len(line) > defaultWidth+1 {
				t.Errorf("too long: %s", line)
			}
		}
	}
}

func TestServiceElsewhere(t *testing.T) {
	if runtime.GOOS == "windows" {
		return // where TestServiceLife runs them
	}
	for _, verb := range []string{"start", "run", "install"} {
		if code, _, problems := flanneldSays(t.Context(), "service", verb); code != exitError || !logtest.Names(problems, "Windows", "systemd") {
			t.Errorf("service %s: %d, %s", verb, code, problems)
		}
	}
}
