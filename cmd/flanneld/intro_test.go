package main

import (
	"strings"
	"testing"

	"flannel/internal/test/logtest"
)

// Only a person who gave nothing is told what happens.
func TestIntroduction(t *testing.T) {
	for _, c := range []struct {
		args, env string
		terminal  bool
		want      string // "": nothing is said
	}{
		{"", "", true, "http://127.0.0.1:2379 /coreos.com/network --kube-subnet-mgr --iface --subnet-file " + systemPath("/run/flannel/subnet.env")},
		{"", "NODE_NAME=x", true, "--kube-subnet-mgr"},
		{"", "", false, ""}, {"--v=0", "", true, ""}, {"", "FLANNELD_IFACE=eth0", true, ""},
	} {
		o, err := parseOptions(strings.Fields(c.args), strings.Fields(c.env))
		if err != nil {
			t.Fatal(err)
		}
		got := introduction(o, process{terminal: c.terminal})
		if (got == "") != (c.want == "") || !logtest.Names(got, strings.Fields(c.want)...) {
			t.Errorf("%q, %q, terminal %t: %q, want %q", c.args, c.env, c.terminal, got, c.want)
		}
	}
}
