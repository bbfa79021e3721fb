package firewall

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"flannel/internal/test/eventually"
	"flannel/internal/test/logtest"
	"flannel/internal/test/nstest"
	"flannel/pkg/firewall"
)

// The issue allows one program in a resync; ours starts none, whatever traffic and other programs do.
func TestSteadyStateStartsNoProgram(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		off := both(firewall.IPTables)
		off.Masquerade, off.Forward = false, false
		for _, c := range []struct {
			name, setup, meanwhile string
			config                 firewall.Config
		}{
			{"iptables-nft", "iptables-nft -N KUBE", "iptables-nft -A KUBE -j RETURN; ping -c 1 127.0.0.1", both(firewall.IPTables)},
			{"rules before ours", "iptables-nft -F", "iptables-nft -t nat -I POSTROUTING -s 10.9.0.1 -j RETURN; iptables-nft -I FORWARD -s 10.9.0.1 -j RETURN", both(firewall.IPTables)},
			{"nftables", "true", "iptables-nft -t nat -I POSTROUTING -j KUBE-MARK || iptables-nft -F FORWARD", both(firewall.NFTables)},
			{"nothing wanted", "true", "iptables-nft -F FORWARD", off},
			{"legacy", "iptables-legacy -t mangle -N KUBE-KUBELET-CANARY", "ping -c 1 127.0.0.1; iptables-legacy-save -c | grep [1-9]:", both(firewall.IPTables)},
		} {
			sh(t, c.setup)
			func() {
				const resync = 250 * time.Millisecond
				f := open(t, resync)
				defer serve(t, f, c.config)()
				path := os.Getenv("PATH")
				count := wrapPrograms(t)
				quiet := func() bool {
					for range 2 { // a process that was stopped sleeps on for no time
						time.Sleep(2*resync + 300*time.Millisecond) // in which nothing is read again
						if count() > 0 {
							return false
						}
					}
					return true
				}
				eventually.True(t, c.name+": what was written was read once", quiet)
				for range 4 {
					cmd := exec.Command("sh", "-c", c.meanwhile)
					cmd.Env = append(os.Environ(), "PATH="+path)
					if out, err := cmd.CombinedOutput(); err != nil {
						t.Errorf("%s: %s: %v\n%s", c.name, c.meanwhile, err, out)
					}
					time.Sleep(resync) // in which it is told of the change
				}
				if n := count(); n > 0 {
					t.Errorf("%s: %d programs started", c.name, n)
				}
				t.Setenv("PATH", path)
			}()
		}
	})
}

// A change of any kind to a big legacy table is seen without reading it through iptables-save.
func TestLegacyDigest(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		for _, c := range []struct{ command, address, loopback string }{
			{"iptables", "10.%d.%d.1/32", "127.0.0.1"}, {"ip6tables", "fd00:%x:%x::1/128", "::1"}} {
			var rules strings.Builder
			rules.WriteString("*filter\n:KUBE - [0:0]\n-A INPUT -m limit --limit 9/sec -j KUBE\n")
			for i := range 20000 {
				fmt.Fprintf(&rules, "-A KUBE -s "+c.address+" -p tcp -m tcp --dport 443 -j RETURN\n", i/256, i%256)
			}
			rules.WriteString("COMMIT\n")
			file := filepath.Join(t.TempDir(), "rules")
			if err := os.WriteFile(file, []byte(rules.String()), 0o600); err != nil {
				t.Fatal(err)
			}
			sh(t, c.command+"-legacy-restore <"+file+"; "+c.command+"-legacy -t nat -N FLANNEL-POSTRTG")
			digest := func() [2]uint64 {
				return [2]uint64{newIPTablesPlace("", c.command, "-legacy", variantLegacy, "filter").digest(),
					newIPTablesPlace("", c.command, "-legacy", variantLegacy, "nat").digest()}
			}
			before := digest()
			sh(t, "ping -c 2 -i 0.1 "+c.loopback)
			start := time.Now()
			after := digest()
			t.Logf("%s: digest of 20,000 rules in %v", c.command, time.Since(start).Round(100*time.Microsecond))
			if before[0] == 0 || before[1] == 0 || before != after {
				t.Errorf("%s: digest %d, after traffic %d, want the same", c.command, before, after)
			}
			for _, change := range []string{"-A KUBE -j DROP", "-R KUBE 777 -p tcp -m tcp --dport 444 -j RETURN", "-t nat -A FLANNEL-POSTRTG -j RETURN", "-P FORWARD DROP"} {
				before := digest()
				sh(t, c.command+"-legacy "+change)
				if digest() == before {
					t.Errorf("%s: %s was not seen", c.command, change)
				}
			}
		}
	})
}

func TestApplyIsCheapWhenInStep(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		f := open(t, time.Hour)
		defer f.Close()
		apply(t, f, both(firewall.IPTables))
		count := wrapPrograms(t)
		for start := time.Now(); ; { // what is told of its own writing makes it look once more
			began := time.Now()
			for range 1000 {
				apply(t, f, both(firewall.IPTables))
			}
			t.Logf("1000 Applies in %v", time.Since(began))
			if n := count(); n == 0 && time.Since(start) > 2*minInterval {
				return
			} else if time.Since(start) > patience {
				t.Fatalf("%d programs started", n)
			}
		}
	})
}

// A program that deletes our jump whenever it sees it is not fought with for long.
func TestFight(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		var log logtest.Log
		f, err := New(firewall.Options{Log: log.Logger(), Resync: time.Hour})
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		apply(t, f, both(firewall.IPTables))
		// The notifications of our own writes are of no interest here.
		undone := func() (repaired int) {
			t.Helper()
			sh(t, "iptables-nft -t nat -F POSTROUTING")
			for deadline := time.After(time.Minute); ; {
				select {
				case <-f.Changes():
				case <-deadline:
					t.Fatal("nobody asks for a repair")
				}
				n := apply(t, f, both(firewall.IPTables))
				if n > 0 || log.Count("level=WARN") > 0 {
					return n
				}
			}
		}
		rounds := 0
		for ; log.Count("level=WARN") == 0; rounds++ {
			if undone() != 1 {
				t.Fatalf("round %d: not repaired", rounds)
			}
		}
		if rounds != repairBurst {
			t.Errorf("repaired %d times until the warning, want %d", rounds, repairBurst)
		}
		if n := undone(); n != 0 {
			t.Errorf("repaired again, before the next resync")
		}
		if warned := log.Count("level=WARN"); warned != 1 {
			t.Errorf("%d warnings:\n%s", warned, log.String())
		}
	})
}
