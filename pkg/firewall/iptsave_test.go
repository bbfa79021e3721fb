package firewall

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestRule(t *testing.T) {
	for line, want := range map[string]struct {
		chain   string
		options []MatchOption
	}{
		`-A FORWARD -s 10.5.0.0/16 ! -d 224.0.0.0/4 -j MASQUERADE --random-fully`: {"FORWARD",
			[]MatchOption{{Name: "-s", Values: []string{"10.5.0.0/16"}}, {Not: true, Name: "-d", Values: []string{"224.0.0.0/4"}},
				{Name: "-j", Values: []string{"MASQUERADE"}}, {Name: "--random-fully"}}},
		`[3:120] -A INPUT -p tcp --tcp-flags SYN,RST SYN -g X`: {"INPUT",
			[]MatchOption{{Name: "-p", Values: []string{"tcp"}}, {Name: "--tcp-flags", Values: []string{"SYN,RST", "SYN"}}, {Name: "-g", Values: []string{"X"}}}},
		`-A C -m comment --comment "was \"x\" -j DROP" -j ACCEPT`: {"C",
			[]MatchOption{{Name: "-m", Values: []string{"comment"}}, {Name: "--comment", Values: []string{`was "x" -j DROP`}}, {Name: "-j", Values: []string{"ACCEPT"}}}},
		`-A C -m comment --comment "-j" -j ACCEPT`: {"C",
			[]MatchOption{{Name: "-m", Values: []string{"comment"}}, {Name: "--comment", Values: []string{"-j"}}, {Name: "-j", Values: []string{"ACCEPT"}}}},
		`-A C`: {"C", nil},
	} {
		chain, args, ok := SavedRule([]byte(line))
		options := MatchOptions(string(args))
		if d := cmp.Diff(want.options, options); !ok || string(chain) != want.chain || d != "" {
			t.Errorf("%s: chain %s, %t\n%s", line, chain, ok, d)
		}
	}
	for _, line := range []string{"", ":FORWARD DROP [0:0]", "COMMIT", "-A", "-A ", "[0:0]", "-D FORWARD -j X"} {
		if chain, args, ok := SavedRule([]byte(line)); ok {
			t.Errorf("%q is taken for a rule of %s: %s", line, chain, args)
		}
	}
	if line := []byte(":FORWARD DROP [0:0]"); string(SavedChain(line)) != "FORWARD" || SavedPolicy(line) != "DROP" {
		t.Errorf("%s is %s, %s", line, SavedChain(line), SavedPolicy(line))
	}
	if chain, policy := SavedChain(nil), SavedPolicy(nil); len(chain) > 0 || policy != "" {
		t.Errorf("an empty line is %s, %s", chain, policy)
	}
}

// FuzzOptions: whatever a rule says, no word of it is lost.
func FuzzOptions(f *testing.F) {
	f.Add(`! -s 10.5.0.0/16 -m comment --comment "a b" -j X`)
	f.Add(`! ! "" -- "unended`)
	f.Fuzz(func(t *testing.T, args string) {
		var all []string
		for _, o := range MatchOptions(args) {
			if o.Not {
				all = append(all, "!")
			}
			all = append(append(all, o.Name), o.Values...)
		}
		if want := words(args); strings.Join(all, "\x00") != strings.Join(want, "\x00") {
			t.Errorf("%q, want %q", all, want)
		}
	})
}
