package firewall

import (
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

const (
	ourJump = `-m comment --comment "flanneld forward" -j FLANNEL-FWD`
	narrow  = `-p tcp -m comment --comment "flanneld forward" -j FLANNEL-FWD`
	redHat  = `-j REJECT --reject-with icmp-host-prohibited`
	policy  = `-m comment --comment "kube-router netpol - TEMCG2JMHZYE7H7T" -j KUBE-ROUTER-FORWARD`
	calico  = `-m comment --comment "cali:wUHhoiAYhphO9Mso" -j cali-FORWARD`
	service = `-m comment --comment "kubernetes forwarding rules" -j KUBE-FORWARD`
	stop    = `-j DROP`
)

// forwardSave is what iptables-save prints of a FORWARD with these rules.
func forwardSave(rules ...string) string {
	var b strings.Builder
	b.WriteString("*filter\n:FORWARD ACCEPT [0:0]\n:FLANNEL-FWD - [0:0]\n")
	for _, r := range rules {
		b.WriteString("-A FORWARD " + r + "\n")
	}
	for _, r := range wanted[1].Rules {
		b.WriteString("-A FLANNEL-FWD " + spec(r, wanted[1].Comment) + "\n")
	}
	b.WriteString("COMMIT\n")
	return b.String()
}

// What is done about the jump of each chain, and what the chain is like after that.
func TestJumpPlace(t *testing.T) {
	for _, c := range []struct {
		name    string
		forward []string
		want    []string
	}{
		{"empty chain", nil, []string{ourJump}},
		{"appended", []string{service, calico}, []string{service, calico, ourJump}},
		{"Red Hat's default", []string{"-i eth0 -j ACCEPT", redHat}, []string{"-i eth0 -j ACCEPT", ourJump, redHat}},
		{"nothing but Red Hat's default", []string{redHat}, []string{ourJump, redHat}},
		{"a comment on it", []string{service, `-m comment --comment "-s any" -j DROP`}, []string{service, ourJump, `-m comment --comment "-s any" -j DROP`}},
		{"two at the end", []string{service, redHat, stop}, []string{service, ourJump, redHat, stop}},
		{"an emergency stop", []string{stop, service}, []string{stop, service, ourJump}},
		{"an emergency stop before Red Hat's default", []string{stop, service, redHat}, []string{stop, service, ourJump, redHat}},
		{"a drop of something", []string{service, "-i eth1 -j DROP"}, []string{service, "-i eth1 -j DROP", ourJump}},
		{"a reject of something", []string{"-p tcp -j REJECT --reject-with tcp-reset"}, []string{"-p tcp -j REJECT --reject-with tcp-reset", ourJump}},
		{"an accept of everything", []string{service, "-j ACCEPT"}, []string{service, "-j ACCEPT", ourJump}},
	} {
		change := planChange(saved(forwardSave(c.forward...)), wanted[1:])
		if diff := cmp.Diff(c.want, carryOut(t, c.forward, change.script)); diff != "" || change.chains != 1 {
			t.Errorf("%s: %d chains written (-want +got):\n%s", c.name, change.chains, diff)
		}
		behind := c.want[slices.Index(c.want, ourJump)+1:]
		if diff := cmp.Diff(behind, change.numbered["FLANNEL-FWD"], cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("%s: the rules behind a jump with a number (-want +got):\n%s", c.name, diff)
		}
	}
}

// A jump that is there once and as ours stays where it is, whatever stands before or behind it.
func TestJumpStays(t *testing.T) {
	for name, forward := range map[string][]string{
		"first":                             {ourJump, service, calico},
		"last":                              {service, calico, ourJump},
		"behind kube-router's and Calico's": {policy, calico, service, ourJump},
		"a drop before it":                  {"-s 10.5.7.0/24 -j DROP", service, ourJump},
		"an emergency stop before it":       {stop, service, ourJump},
		"nothing but a stop before it":      {stop, ourJump},
		"Red Hat's default before it":       {service, redHat, ourJump},
		"Red Hat's default behind it":       {ourJump, service, redHat},
		"right before Red Hat's default":    {service, ourJump, redHat},
		"between two stops":                 {stop, ourJump, redHat},
		"other spelling":                    {`-m comment  --comment "flanneld forward" -j FLANNEL-FWD`, service},
	} {
		if c := planChange(saved(forwardSave(forward...)), wanted[1:]); c.chains != 0 || c.script != "" {
			t.Errorf("%s: %d chains written:\n%s", name, c.chains, c.script)
		}
	}
}

func TestJumpRepaired(t *testing.T) {
	for _, c := range []struct {
		name          string
		forward, want []string
	}{
		{"twice: the last stays", []string{ourJump, service, ourJump, calico}, []string{service, ourJump, calico}},
		{"thrice", []string{ourJump, ourJump, service, ourJump}, []string{service, ourJump}},
		{"twice, the last useless", []string{ourJump, service, redHat, ourJump}, []string{ourJump, service, redHat}},
		{"thrice, the last useless", []string{ourJump, service, ourJump, redHat, ourJump}, []string{service, ourJump, redHat}},
		{"twice behind a stop", []string{stop, ourJump, service, ourJump}, []string{stop, service, ourJump}},
		{"narrowed", []string{service, narrow, calico}, []string{service, ourJump, calico}},
		{"narrowed behind a stop", []string{stop, narrow}, []string{stop, ourJump}},
		{"narrowed at the end", []string{service, narrow}, []string{service, ourJump}},
		{"narrowed, and one as ours", []string{narrow, service, ourJump, calico}, []string{service, ourJump, calico}},
		{"narrowed twice", []string{narrow, service, narrow}, []string{service, ourJump}},
	} {
		change := planChange(saved(forwardSave(c.forward...)), wanted[1:])
		if diff := cmp.Diff(c.want, carryOut(t, c.forward, change.script)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", c.name, diff)
		}
		if again := planChange(saved(forwardSave(c.want...)), wanted[1:]); again.chains != 0 {
			t.Errorf("%s: written again:\n%s", c.name, again.script)
		}
	}
}

// carryOut does with the rules of FORWARD what iptables-restore does with a script.
func carryOut(t *testing.T, forward []string, script string) []string {
	t.Helper()
	forward = slices.Clone(forward)
	for line := range strings.Lines(script) {
		command, args, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " FORWARD ")
		switch command {
		case "-D":
			i := slices.Index(forward, args)
			if i < 0 {
				t.Fatalf("no rule to delete: %s", line)
			}
			forward = slices.Delete(forward, i, i+1)
		case "-I":
			number, rest, _ := strings.Cut(args, " ")
			n, err := strconv.Atoi(number)
			if err != nil || n < 1 || n > len(forward)+1 {
				t.Fatalf("no such place: %s", line)
			}
			forward = slices.Insert(forward, n-1, rest)
		case "-A":
			forward = append(forward, args)
		}
	}
	return forward
}

func parsed(forward []string) []parentRule {
	return saved(forwardSave(forward...)).chain(wanted[1]).parent
}

func TestMisplaced(t *testing.T) {
	for _, c := range []struct {
		name    string
		forward []string
		want    bool
	}{
		{"as planned", []string{calico, ourJump, redHat}, false},
		{"a rule came before us meanwhile", []string{"-i a -j ACCEPT", calico, ourJump, redHat}, false},
		{"a rule came before the number was used", []string{calico, ourJump, service, redHat}, true},
		{"a rule was appended", []string{calico, ourJump, redHat, service}, false},
		{"the rule behind us has gone", []string{calico, ourJump}, true},
		{"our jump has gone", []string{calico, redHat}, false},
	} {
		if got := misplaced(parsed(c.forward), []string{redHat}); got != c.want {
			t.Errorf("%s: misplaced %t, want %t", c.name, got, c.want)
		}
	}
	anew := savedRules{chains: map[string]*savedChain{"FLANNEL-FWD": {exists: true, misplaced: true, parent: parsed([]string{calico, ourJump, service, redHat})}}}
	script := planChange(anew, wanted[1:]).script
	if got := carryOut(t, []string{calico, ourJump, service, redHat}, script); !cmp.Equal(got, []string{calico, service, ourJump, redHat}) {
		t.Errorf("placed anew: %q by\n%s", got, script)
	}
}

// In nat nothing but the end of the chain is a place for a new jump.
func TestJumpPlaceInPostrouting(t *testing.T) {
	const save = "*nat\n:POSTROUTING ACCEPT [0:0]\n-A POSTROUTING -m addrtype ! --dst-type LOCAL -j IP-MASQ-AGENT\n-A POSTROUTING -j MASQUERADE\n-A POSTROUTING -j DROP\nCOMMIT\n"
	c := planChange(saved(save), wanted[:1])
	if line := `-A POSTROUTING -m comment --comment "flanneld masq" -j FLANNEL-POSTRTG`; !strings.Contains(c.script, "\n"+line+"\nCOMMIT\n") {
		t.Errorf("the script does not end with %s:\n%s", line, c.script)
	}
}
