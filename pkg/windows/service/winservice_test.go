package service

import (
	"strings"
	"testing"

	"flannel/internal/test/logtest"
)

// A problem with a flag names the flag, and does not show its password.
func TestConfigHidesThePassword(t *testing.T) {
	for _, args := range [][]string{{"--etcd-password=a%b%hunter2"}, {"-etcd-password", "a%b%hunter2"}} {
		if _, err := NewConfig("x", args, nil, Daemon{}); err == nil || !strings.Contains(err.Error(), "-etcd-password") || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%q: %v", args, err)
		}
	}
}

func TestServiceWarnings(t *testing.T) {
	for _, c := range []Config{
		{Command: []string{"x", "--etcd-username=u", "--etcd-password=hunter2"}}, {Command: []string{"x", "-etcd-password", "hunter2"}},
		{Env: []string{"FLANNELD_ETCD_PASSWORD=hunter2"}},
	} {
		if w := strings.Join(c.Warnings(), "|"); !logtest.Names(w, "etcd") || strings.Contains(w, "hunter2") {
			t.Errorf("%+v: %q", c, w)
		}
	}
	if w := (Config{Command: []string{"x", "--etcd-cafile=/ca"}, Env: []string{"FLANNELD_ETCD_KEYFILE=/k"}}).Warnings(); w != nil {
		t.Error(w)
	}
}

// The last two words together are those of flanneld service install.
func TestArguments(t *testing.T) {
	for line, want := range map[string]bool{
		`flanneld.exe --iface=Ethernet service run`: true, "service run": true,
		"flanneld.exe service start": false, "flanneld.exe --iface run": false, "nssm.exe": false, "": false,
	} {
		command := strings.Fields(line)
		rest := len(command)
		if want {
			rest -= 2
		}
		if args, got := Arguments(command); got != want || len(args) != rest {
			t.Errorf("%q: %t, with the arguments %q", line, got, args)
		}
	}
}
