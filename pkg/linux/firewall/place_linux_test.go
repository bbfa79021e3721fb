package firewall

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"flannel/internal/test/eventually"
	"flannel/internal/test/nstest"
	"flannel/pkg/firewall"
)

// family is iptables of one family and variant, with a flow through FORWARD that our rules let pass.
type family struct {
	command     string // with the variant
	pod, target string // the flow's addresses; it goes from the pod to the peer
}

func families(variant string) []family {
	return []family{
		{"iptables-" + variant, "10.5.34.2", "10.5.99.2"},
		{"ip6tables-" + variant, "2001:cafe:42:1::2", "2001:cafe:42:99::2"},
	}
}

var variants = map[string]seen{"nft": seenNFT, "legacy": seenLegacy}

// passes waits until a ping of the pod is answered. On a busy machine, the kernel may not find the target at first, which
// ends a ping.
func (f family) passes(t *testing.T) {
	t.Helper()
	eventually.Nil(t, f.target+" answers", func() error {
		return exec.CommandContext(t.Context(), "ip", "netns", "exec", "pod", "ping", "-n", "-q", "-c", "1", "-w", "60", f.target).Run()
	})
}

// blocked pings with every family for some time and wants no answer.
func blocked(t *testing.T, when string, d time.Duration, families ...family) {
	t.Helper()
	const interval = 200 * time.Millisecond
	var script strings.Builder
	for _, f := range families {
		fmt.Fprintf(&script, "ip netns exec pod ping -n -q -i %v -c %d -W 1 %s & ", interval.Seconds(), d/interval+1, f.target)
	}
	out := sh(t, script.String()+"wait")
	if strings.Count(out, " 0 received") != len(families) {
		t.Errorf("%s: pings pass:\n%s", when, out)
	}
}

// chain is a chain as iptables lists it, without its policy.
func (f family) chain(t *testing.T, table, name string) []string {
	t.Helper()
	out := sh(t, f.command+" -t "+table+" -S "+name)
	return strings.Split(strings.TrimSpace(out), "\n")[1:]
}

const (
	forwardJump = `-A FORWARD -m comment --comment "flanneld forward" -j FLANNEL-FWD`
	masqJump    = `-A POSTROUTING -m comment --comment "flanneld masq" -j FLANNEL-POSTRTG`
)

// A DROP that somebody puts before our jump counts for as long as it is there, over a restart too.
func TestDropBeforeOurs(t *testing.T) {
	t.Parallel()
	for variant, s := range variants {
		for kind, match := range map[string]string{"matching": "-s %s ", "catch-all": "%.0s"} {
			t.Run(variant+" "+kind, func(t *testing.T) {
				nstest.Run(t, func(t *testing.T) { dropBeforeOurs(t, s, families(variant), match) })
			})
		}
	}
}

func dropBeforeOurs(t *testing.T, s seen, families []family, match string) {
	sh(t, topology+"\n"+s.setup)
	for _, f := range families {
		sh(t, f.command+" -P FORWARD DROP")
	}
	stop := serve(t, open(t, time.Second), both(firewall.IPTables))
	for _, f := range families {
		f.passes(t)
		sh(t, f.command+" -I FORWARD "+fmt.Sprintf(match, f.pod)+"-j DROP")
	}
	check := func(when string, d time.Duration) {
		t.Helper()
		blocked(t, when, d, families...)
		for _, f := range families {
			if got := f.chain(t, "filter", "FORWARD"); len(got) != 2 || !strings.HasSuffix(got[0], "-j DROP") || got[1] != forwardJump {
				t.Errorf("%s: FORWARD of %s is %q, want the DROP and our jump", when, f.command, got)
			}
		}
	}
	check("while the daemon runs", 10*time.Second)
	stop()
	stop = serve(t, open(t, time.Second), both(firewall.IPTables))
	defer stop()
	check("after a restart", 2*time.Second)
	for _, f := range families {
		sh(t, f.command+" -D FORWARD 1")
		f.passes(t)
	}
}

// engines are the rules of other programs, as they make them; $c is iptables of one family, $pod a pod's address.
var engines = []struct {
	name          string
	refused       bool   // its policy drops what comes from the pod
	before, later string // done before and after our start
}{
	{name: "kube-router", refused: true, before: `
		$c -N KUBE-POD-FW-A; $c -A KUBE-POD-FW-A -m mark ! --mark 0x10000/0x10000 -j DROP
		$c -N KUBE-ROUTER-FORWARD
		$c -A KUBE-ROUTER-FORWARD -s $pod -m comment --comment "rule to jump traffic from POD" -j KUBE-POD-FW-A
		$c -A KUBE-ROUTER-FORWARD -m mark --mark 0x20000/0x20000 -j ACCEPT`,
		later: `$c -I FORWARD 1 -m comment --comment "kube-router netpol - TEMCG2JMHZYE7H7T" -j KUBE-ROUTER-FORWARD`},
	{name: "Calico", refused: true, before: `
		$c -N cali-FORWARD; $c -A cali-FORWARD -s $pod -m comment --comment cali:vjrMJCRpqwy5oRoX -j DROP`,
		later: `$c -I FORWARD -m comment --comment cali:wUHhoiAYhphO9Mso -j cali-FORWARD
		$c -A FORWARD -m comment --comment cali:S93hcgKJrXEqnTfs -m mark --mark 0x10000/0x10000 -j ACCEPT`},
	{name: "Calico, ChainInsertMode Append", refused: true, before: `
		$c -N cali-FORWARD; $c -A cali-FORWARD -s $pod -j DROP
		$c -A FORWARD -m comment --comment cali:wUHhoiAYhphO9Mso -j cali-FORWARD`, later: "true"},
	{name: "kube-proxy and ip-masq-agent", before: `
		$c -N KUBE-FORWARD; $c -A KUBE-FORWARD -m conntrack --ctstate INVALID -j DROP
		$c -t nat -N KUBE-POSTROUTING; $c -t nat -A KUBE-POSTROUTING -m mark ! --mark 0x4000/0x4000 -j RETURN
		$c -t nat -A KUBE-POSTROUTING -j MASQUERADE
		$c -t nat -N IP-MASQ-AGENT; $c -t nat -A IP-MASQ-AGENT -s $pod -j RETURN
		$c -t nat -A POSTROUTING -m comment --comment "ip-masq-agent: ensure nat POSTROUTING directs all non-LOCAL destination traffic to our custom IP-MASQ-AGENT chain" -m addrtype ! --dst-type LOCAL -j IP-MASQ-AGENT`,
		later: `$c -I FORWARD -m comment --comment "kubernetes forwarding rules" -j KUBE-FORWARD
		$c -t nat -I POSTROUTING -m comment --comment "kubernetes postrouting rules" -j KUBE-POSTROUTING`},
}

// The rules of other programs keep their place before ours and their effect, whether they were there before us or came
// later, through repairs and restarts.
func TestBesideOthers(t *testing.T) {
	t.Parallel()
	for variant, s := range variants {
		t.Run(variant, func(t *testing.T) {
			nstest.Run(t, func(t *testing.T) {
				sh(t, topology+"\n"+s.setup)
				for _, e := range engines {
					for _, f := range families(variant) {
						script := "c=" + f.command + "; pod=" + f.pod + "; $c -P FORWARD DROP; "
						sh(t, script+e.before)
						besideOthers(t, f, e.name, script+e.later, e.refused)
						sh(t, script+"for t in nat filter; do $c -t $t -F; $c -t $t -X; done")
					}
				}
			})
		})
	}
}

func besideOthers(t *testing.T, f family, name, later string, refused bool) {
	config := both(firewall.IPTables)
	if strings.HasPrefix(f.command, "ip6") {
		config.V4 = firewall.Family{}
	} else {
		config.V6 = firewall.Family{}
	}
	fw := open(t, 0)
	apply(t, fw, config)
	sh(t, later)
	forward, nat := f.chain(t, "filter", "FORWARD"), f.chain(t, "nat", "POSTROUTING")
	check := func(when string, forward, nat []string) {
		t.Helper()
		if diff := cmp.Diff(forward, f.chain(t, "filter", "FORWARD")); diff != "" {
			t.Errorf("%s, %s, %s: FORWARD (-want +got):\n%s", name, f.command, when, diff)
		}
		if diff := cmp.Diff(nat, f.chain(t, "nat", "POSTROUTING")); diff != "" {
			t.Errorf("%s, %s, %s: POSTROUTING (-want +got):\n%s", name, f.command, when, diff)
		}
		if refused {
			blocked(t, name+", "+when, 200*time.Millisecond, f)
		} else {
			f.passes(t)
		}
	}
	again := func(when, damage string, forward, nat []string) {
		t.Helper()
		sh(t, damage)
		for _, s := range fw.places {
			s.needsCheck = true
		}
		apply(t, fw, config)
		check(when, forward, nat)
	}
	check("while we run", forward, nat)
	again("chains repaired", f.command+" -F FLANNEL-FWD; "+f.command+" -t nat -F FLANNEL-POSTRTG", forward, nat)
	last := func(chain []string, jump string) []string {
		return append(slices.DeleteFunc(slices.Clone(chain), func(r string) bool { return r == jump }), jump)
	}
	again("jumps repaired", strings.NewReplacer("-A FORWARD", f.command+" -D FORWARD", "-A POSTR", "; "+f.command+" -t nat -D POSTR").
		Replace(forwardJump+masqJump), last(forward, forwardJump), last(nat, masqJump))
	fw.Close()
	fw = open(t, 0)
	again("restarted", "true", last(forward, forwardJump), last(nat, masqJump))
	fw.Close()
}

const (
	hostProhibited  = "-A FORWARD -j REJECT --reject-with icmp-host-prohibited"
	admProhibited   = "-A FORWARD -j REJECT --reject-with icmp6-adm-prohibited"
	redHatForwards4 = "*filter\n:FORWARD ACCEPT [0:0]\n-A FORWARD -i lo -j ACCEPT\n" + hostProhibited + "\nCOMMIT\n"
	redHatForwards6 = "*filter\n:FORWARD ACCEPT [0:0]\n-A FORWARD -i lo -j ACCEPT\n" + admProhibited + "\nCOMMIT\n"
)

// Behind Red Hat's last rule of FORWARD our jump would do nothing: it stands right before it, also when the
// administrator loads the rules again.
func TestRedHatDefault(t *testing.T) {
	for variant, s := range variants {
		t.Run(variant, func(t *testing.T) {
			nstest.Run(t, func(t *testing.T) {
				sh(t, topology+"\n"+s.setup)
				load := fmt.Sprintf("iptables-%[1]s-restore <<'E'\n%[2]sE\nip6tables-%[1]s-restore <<'E'\n%[3]sE\n", variant, redHatForwards4, redHatForwards6)
				sh(t, load)
				defer serve(t, open(t, time.Second), both(firewall.IPTables))()
				rejects := map[string]string{"iptables-" + variant: hostProhibited, "ip6tables-" + variant: admProhibited}
				passes := func(when string, want func(reject string) []string) {
					t.Helper()
					for _, f := range families(variant) {
						eventually.Nil(t, when+", "+f.command, func() error {
							if got := f.chain(t, "filter", "FORWARD"); !cmp.Equal(want(rejects[f.command]), got) {
								return fmt.Errorf("FORWARD is %q", got)
							}
							return nil
						})
						f.passes(t)
					}
				}
				first := func(reject string) []string { return []string{"-A FORWARD -i lo -j ACCEPT", forwardJump, reject} }
				passes("at the start", first)
				sh(t, load)
				passes("loaded again", first)
				for _, f := range families(variant) {
					sh(t, f.command+" -I FORWARD -i eth9 -j DROP; "+f.command+" -D "+strings.TrimPrefix(forwardJump, "-A "))
				}
				passes("the jump deleted", func(reject string) []string {
					return append([]string{"-A FORWARD -i eth9 -j DROP"}, first(reject)...)
				})
			})
		})
	}
}

// A rule that comes between our reading and our writing moves the numbers of all rules: the jump is put right at once.
func TestInsertedWhileAnotherWrites(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		sh(t, "iptables-nft -A FORWARD -i a -j DROP; iptables-nft "+hostProhibited)
		dir := t.TempDir()
		script := "#!/bin/sh\n[ -e " + dir + "/done ] || { touch " + dir + "/done; /usr/sbin/iptables-nft -I FORWARD -i b -j DROP; }\nexec /usr/sbin/iptables-nft-restore \"$@\"\n"
		if err := os.WriteFile(filepath.Join(dir, "iptables-nft-restore"), []byte(script), 0o755); err != nil {
			t.Fatal(err)
		}
		t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
		f := open(t, 0)
		defer f.Close()
		apply(t, f, both(firewall.IPTables))
		want := []string{"-A FORWARD -i b -j DROP", "-A FORWARD -i a -j DROP", forwardJump, hostProhibited}
		if diff := cmp.Diff(want, family{command: "iptables-nft"}.chain(t, "filter", "FORWARD")); diff != "" {
			t.Errorf("FORWARD (-want +got):\n%s", diff)
		}
	})
}

// An error after a chain was repaired does not hide that it was repaired.
func TestWrittenBeforeError(t *testing.T) {
	for name, end := range map[string]string{"killed": "kill -9 $$", "refused": "exit 1"} {
		t.Run(name, func(t *testing.T) {
			nstest.Run(t, func(t *testing.T) {
				repaired := 0
				f, err := New(firewall.Options{Log: quiet, Repaired: func() { repaired++ }})
				if err != nil {
					t.Fatal(err)
				}
				defer f.Close()
				apply(t, f, both(firewall.IPTables))
				sh(t, "iptables-nft -F FORWARD; iptables-nft "+hostProhibited)
				dir := t.TempDir()
				// Beside the first write to filter, another rule is inserted, so that a second write moves the jump. The second
				// write is killed or refused.
				script := "#!/bin/sh\ninput=$(cat)\ncase $input in *FORWARD*) [ -e " + dir + "/done ] && " + end + "; touch " + dir + "/done\n" +
					"/usr/sbin/iptables-nft -I FORWARD -i b -j DROP;; esac\nprintf '%s\\n' \"$input\" | /usr/sbin/iptables-nft-restore \"$@\"\n"
				if err := os.WriteFile(filepath.Join(dir, "iptables-nft-restore"), []byte(script), 0o755); err != nil {
					t.Fatal(err)
				}
				t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
				for _, s := range f.places {
					s.needsCheck = true
				}
				changed, err := f.Apply(t.Context(), both(firewall.IPTables))
				wantErr := name == "killed" // after a refusal, syncPlace syncs once more, and finds nothing left to write
				if (err != nil) != wantErr || changed != 1 || repaired != 1 {
					t.Errorf("%d chains changed, want 1, %d repairs reported, want 1; an error is wanted: %t, got %v", changed, repaired, wantErr, err)
				}
			})
		})
	}
}

// The same rules hold where iptables-save cannot read the table.
func TestPlaceInTableThatIPTablesCannotRead(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		const chain = "nft -a list chain ip filter FORWARD"
		f := open(t, 0)
		defer f.Close()
		for _, step := range []struct{ change, want string }{
			{`iptables-nft -A INPUT -j RETURN; iptables-nft -A FORWARD -m comment --comment foreign -j RETURN
				nft add rule ip filter FORWARD ip saddr '{10.9.0.1, 10.9.0.2}' drop
				nft add rule ip filter FORWARD log counter reject with icmp type admin-prohibited`, "return 10.9.0.1 FLANNEL reject"},
			{`nft insert rule ip filter FORWARD ip saddr '{10.8.0.1, 10.8.0.2}' drop
				nft insert rule ip filter FORWARD drop`, "drop 10.8.0.1 return 10.9.0.1 FLANNEL reject"},
			{"nft delete rule ip filter FORWARD handle $(" + chain + " | sed -n 's/.*FLANNEL.*handle //p')", "drop 10.8.0.1 return 10.9.0.1 FLANNEL reject"},
			{"nft insert rule ip filter FORWARD jump FLANNEL-FWD", "drop 10.8.0.1 return 10.9.0.1 FLANNEL reject"},
			{"nft add rule ip filter FORWARD jump FLANNEL-FWD", "drop 10.8.0.1 return 10.9.0.1 FLANNEL reject"},
			{"nft flush chain ip filter FORWARD; nft add rule ip filter FORWARD ip saddr '{10.9.0.1, 10.9.0.2}' drop", "10.9.0.1 FLANNEL"},
		} {
			sh(t, step.change)
			for _, s := range f.places {
				s.needsCheck = true
			}
			apply(t, f, both(firewall.IPTables))
			got := regexp.MustCompile(`return|10\.[89]\.0\.1|FLANNEL|reject|\bdrop\b`).FindAllString(sh(t, chain+" | grep handle | grep -v chain | sed 's/} drop/}/'"), -1)
			if strings.Join(got, " ") != step.want {
				t.Errorf("after %s\nFORWARD is %q, want %q", step.change, got, step.want)
			}
			if n := apply(t, f, both(firewall.IPTables)); n != 0 {
				t.Errorf("after %s\na second Apply changed %d chains", step.change, n)
			}
		}
	})
}
