package conformance

import (
	"os"
	"path/filepath"
	"testing"
)

// written is what Ginkgo writes: a step before all tests, a test that passed, one
// that failed, one that skipped itself and one that the focus left out.
const written = `<?xml version="1.0" encoding="UTF-8"?>
<testsuites tests="5" disabled="1" errors="0" failures="1" time="9">
  <testsuite name="Kubernetes e2e suite" tests="5">
    <testcase name="[SynchronizedBeforeSuite]" status="passed" time="1"></testcase>
    <testcase name="[It] [sig-network] Services should serve [Conformance]" status="passed" time="3.5"></testcase>
    <testcase name="[It] [sig-network] ` + changes + `" status="failed" time="4">
      <failure message="node sees 10.244.0.0" type="failed">trace</failure>
    </testcase>
    <testcase name="[It] [sig-network] needs SCTP" status="skipped" time="0.2">
      <skipped message="skipped - no SCTP"></skipped>
    </testcase>
    <testcase name="[It] [sig-node] left out" status="skipped" time="0"><skipped message="skipped"></skipped></testcase>
  </testsuite>
</testsuites>
`

const changes = "should implement NodePort and HealthCheckNodePort correctly when ExternalTrafficPolicy changes"

func TestRead(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if _, err := read(dir); err == nil {
		t.Error("a run without results is accepted")
	}
	if err := os.WriteFile(filepath.Join(dir, "junit_01.xml"), []byte(written), 0o600); err != nil {
		t.Fatal(err)
	}
	r, err := read(dir)
	if err != nil {
		t.Fatal(err)
	}
	want := results{
		{name: "[sig-network] " + changes, seconds: 4, failure: "node sees 10.244.0.0"},
		{name: "[sig-network] Services should serve [Conformance]", seconds: 3.5},
		{name: "[sig-network] needs SCTP", seconds: 0.2, skipped: "no SCTP"},
	}
	if len(r) != len(want) {
		t.Fatalf("read %+v, want %+v", r, want)
	}
	for i := range want {
		if r[i] != want[i] {
			t.Errorf("read %+v, want %+v", r[i], want[i])
		}
	}
}

func TestUnexpected(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		what           string
		backend        string
		result         test
		failed, passed int
	}{
		{"expected failure", "vxlan", test{name: changes, failure: "x"}, 0, 0},
		{"expected failure of another backend", "host-gw", test{name: changes, failure: "x"}, 1, 0},
		{"expected failure has passed", "vxlan", test{name: changes}, 0, 1},
		{"expected failure has skipped itself", "vxlan", test{name: changes, skipped: "x"}, 0, 0},
		{"another test has failed", "vxlan", test{name: "x", failure: "x"}, 1, 0},
		{"another test has passed", "vxlan", test{name: "x"}, 0, 0},
	} {
		failed, passed := results{c.result}.unexpected(c.backend)
		if len(failed) != c.failed || len(passed) != c.passed {
			t.Errorf("%s: failed %v, passed %v", c.what, failed, passed)
		}
		if err := (results{c.result}).verdict(c.backend); (err != nil) != (c.failed+c.passed > 0) {
			t.Errorf("%s: %v", c.what, err)
		}
	}
}

func TestGuardFoundNothing(t *testing.T) {
	t.Parallel()
	const outsider = "flanneld_guard_packets_total{mode=\"enforce\",rule=\"outsider\"} "
	for _, c := range []struct {
		before, after string
		fails         bool
	}{
		{"", "", false},
		{outsider + "0\n", outsider + "0\n", false},
		{outsider + "0\n", "x 1\n" + outsider + "7\ny 1\n", true},
		{"", outsider + "1e+06\n", true},
		{outsider + "3\n", outsider + "3\n", false}, // of nodes that joined
		{outsider + "3\n", outsider + "4\n", true},
		{outsider + "3\n", outsider + "0\n", true}, // it began anew, with whatever it found before
		{outsider + "3\n", "", true},
	} {
		before, err := counters(c.before)
		after, err2 := counters(c.after)
		if err != nil || err2 != nil {
			t.Fatal(err, err2)
		}
		if err := added(before, after); (err != nil) != c.fails {
			t.Errorf("%q, then %q: %v", c.before, c.after, err)
		}
	}
}

func TestFoundEarly(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		backend map[string]any
		rule    string
		packets float64
		fails   bool
	}{
		{map[string]any{"Type": "vxlan"}, "outsider", 3, false},
		{map[string]any{"Type": "vxlan"}, "spoofed", 0, false},
		{map[string]any{"Type": "vxlan"}, "spoofed", 3, true},
		{map[string]any{"Type": "vxlan"}, "inner", 3, true},
		{map[string]any{"Type": "vxlan", "DirectRouting": true}, "spoofed", 3, false},
		{map[string]any{"Type": "host-gw"}, "spoofed", 3, false},
	} {
		counters := map[string]float64{`mode="enforce",rule="` + c.rule + `"`: c.packets}
		if err := foundEarly("node1", c.backend, counters); (err != nil) != c.fails {
			t.Errorf("%+v: %v", c, err)
		}
	}
}

func TestParse(t *testing.T) {
	t.Parallel()
	o, err := Parse(t.Output(), []string{"--backend", `{"Type":"host-gw"}`, "--proxy-mode", "nftables", "--enable-nftables", "--guard", "enforce", "--ipv6"})
	if err != nil || o.backendType() != "host-gw" || o.name() != "conformance-host-gw-nftables-EnableNFTables-guard-enforce-dual-stack" {
		t.Errorf("%+v %s: %v", o, o.name(), err)
	}
	if o, err = Parse(t.Output(), []string{"--focus", `Services|DNS \[x/y\]`}); err != nil || o.name() != "conformance-vxlan-iptables-focus" {
		t.Errorf("a focused run would replace the results of a whole one: %s: %v", o.name(), err)
	}
	for _, args := range [][]string{{"--set", "x"}, {"--procs", "0"}, {"x"}, {"--backend", "{"}} {
		if o, err := Parse(t.Output(), args); err == nil {
			t.Errorf("%q is accepted as %+v", args, o)
		}
	}
}
