package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"flannel/internal/test/logtest"
)

// The verdict is for both systems, and the status for the one that is asked for.
func TestCheckConfig(t *testing.T) {
	const both = `{"Network":"10.244.0.0/16","Backend":{"Type":"vxlan","VNI":4096,"Port":4789}}`
	for _, c := range []struct {
		args, config string
		code         int
		want         string
	}{
		{"-", both, exitOK, "linux nodes: valid, vxlan, 10.244.0.0/16\nwindows nodes: valid, vxlan, 10.244.0.0/16\n"},
		{"--os=all -", both, exitOK, "windows nodes: valid"},
		{"--os=linux -", `{"Network":"10.244.0.0/16","Backend":{"Type":"vxlan","VNI":1}}`, exitOK, "windows nodes: invalid\n  problem: Backend.VNI: "},
		{"--os=windows -", `{"Network":"10.244.0.0/16","Backend":{"Type":"vxlan","VNI":1}}`, exitNotReady, "linux nodes: valid"},
		{"--os=all -", `{"Network":"10.244.0.0/16","Backend":{"Type":"wireguard"}}`, exitNotReady, "wireguard is not supported on Windows"},
		{"-", `{"Network":"10.244.0.0/16","Backend":{"Type":"vxlan","Prot":8472}}`, exitOK, `  warning: Backend.Prot: `},
		{"-", `{"Network":"10.244.0.0/33","SubnetLen":"x","Backend":{"Type":"vxlan"}}`, exitNotReady, "  problem: Network: "},
		{"-", `{"Network":"10.244.0.0/33","SubnetLen":"x","Backend":{"Type":"vxlan"}}`, exitNotReady, "  problem: SubnetLen: "},
		{"-", `{"Network":"10.244.0.0/16","Backend":{"Type":"tencent-vpc"}}`, exitNotReady, "tencent-vpc is not supported"},
		{"-", `{`, exitNotReady, "linux nodes: invalid\n  problem: "},
		{"-", ``, exitNotReady, "linux nodes: invalid\n  problem: "},
	} {
		var out, problems strings.Builder
		code := run(t.Context(), process{args: append([]string{"check-config"}, strings.Fields(c.args)...), stdin: strings.NewReader(c.config), stdout: &out, stderr: &problems})
		if code != c.code || !strings.Contains(out.String(), c.want) || problems.String() != "" {
			t.Errorf("%s %s: ends with %d, want %d and %q:\n%s%s", c.args, c.config, code, c.code, c.want, out.String(), problems.String())
		}
	}
}

func TestCheckConfigSources(t *testing.T) {
	dir := t.TempDir()
	file, missing := filepath.Join(dir, "net-conf.json"), filepath.Join(dir, "missing.json")
	if err := os.WriteFile(file, []byte(`{"Network":"10.244.0.0/16","Backend":{"Type":"host-gw"}}`), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		args string
		code int
		want string // what the source or the problem names
	}{
		{"check-config --json " + file, exitOK, file},
		{"--kube-subnet-mgr --net-config-path=" + file + " check-config --json", exitOK, file},
		{"check-config --json " + missing, exitError, missing},
		{"--kube-subnet-mgr --net-config-path=" + missing + " check-config --json", exitError, missing},
		{"--etcd-endpoints=http://127.0.0.1:1 check-config --json --timeout=1s", exitError, "127.0.0.1:1 /coreos.com/network/config"},
		{"--kubeconfig-file=" + missing + " check-config --json --kube", exitError, missing},
		{"check-config --json --kube --configmap=flannel", exitError, `"flannel" namespace/name`},
		{"check-config --json --kube other.json", exitUsage, "--kube other.json"},
		{"check-config --json --os=mac " + file, exitUsage, `--os "mac" linux windows all`},
		{"check-config --json " + file + " second", exitUsage, `"second"`},
	} {
		code, out, _ := flanneldSays(t.Context(), strings.Fields(c.args)...)
		answer := read[checkAnswer](t, out)
		if code != c.code || !logtest.Names(answer.Source+" "+answer.Problem, strings.Fields(c.want)...) || code == exitOK && len(answer.Systems) != 2 {
			t.Errorf("flanneld %s ends with %d, want %d and %q:\n%s", c.args, code, c.code, c.want, out)
		}
	}
}
