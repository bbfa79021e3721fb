package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"flannel/internal/test/hnstest"
)

// loopbackDSR is left out if HNS refuses it, but not if the flag is given: then there is no trial, as if the file is printed.
func TestLoopbackDSRGiven(t *testing.T) {
	m := machine(t)
	dir := t.TempDir()
	file, conf := filepath.Join(dir, "run", "subnet.env"), filepath.Join(dir, "10-flannel.conf")
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	do := func(args ...string) {
		t.Helper()
		args = append([]string{"--subnet-file=" + file, "--iface=Ethernet"}, args...)
		if code, out, problems := flanneldSays(t.Context(), args...); code != exitOK {
			t.Fatalf("%q: %d %s%s", args, code, out, problems)
		}
	}
	do("prepare", "--network-mode=overlay")
	m.Turn(func(k *hnstest.Knobs) { k.MaxOutBoundNAT = 1 })
	write := []string{"cni-conf", "--to=" + conf, "--plugin=win-overlay", "--network-name=flannel.4096", "--cluster-cidr=10.244.0.0/16",
		"--service-cidr=10.96.0.0/12", "--management-ip=" + hnstest.HostAddr.Addr().String()}
	m.ForgetLog()
	do(append(write, "--to=-")...)
	if changes := m.Changes(); len(changes) > 0 {
		t.Errorf("to print the configuration, HNS was changed: %+v", changes)
	}
	for _, c := range []struct {
		more []string
		want bool
	}{{nil, false}, {[]string{"--loopback-dsr"}, true}, {nil, true}} {
		m.ForgetLog()
		do(append(write, c.more...)...)
		text, err := os.ReadFile(conf)
		if has := strings.Contains(string(text), `"loopbackDSR": true`); err != nil || has != c.want {
			t.Errorf("with %q: loopbackDSR %t, want %t, %v", c.more, has, c.want, err)
		}
		if changes := m.Changes(); (len(changes) > 0) == c.want {
			t.Errorf("with %q: HNS was changed: %+v", c.more, changes)
		}
	}
}
