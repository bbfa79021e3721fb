package firewall

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/nftables"
	"golang.org/x/sys/unix"

	"flannel/internal/test/eventually"
	"flannel/internal/test/nstest"
	"flannel/pkg/firewall"
)

func TestOmitted(t *testing.T) {
	all := func(random bool) []firewall.Chain {
		return firewall.Rules(firewall.Config{Masquerade: true, Forward: true, RandomFully: random}, v4)
	}
	have := all(true)
	if plain := (omitted{random: true}).from(have); !reflect.DeepEqual(plain, all(false)) {
		t.Errorf("without random ports: %+v", plain)
	}
	want := all(true)
	for i := range want {
		want[i].Comment = ""
	}
	if plain := (omitted{comment: true}).from(have); !reflect.DeepEqual(plain, want) {
		t.Errorf("without comments: %+v, want %+v", plain, want)
	}
	if !reflect.DeepEqual(have, all(true)) {
		t.Errorf("from changed its argument: %+v", have)
	}
}

// A host whose iptables or kernel has no extension for comments gets all rules, without comments.
func TestWithoutComments(t *testing.T) {
	for variant, s := range variants {
		t.Run(variant, func(t *testing.T) {
			nstest.Run(t, func(t *testing.T) {
				sh(t, s.setup)
				withoutExtensions(t, "comment")
				f := open(t, 300*time.Millisecond)
				stop := serve(t, f, both(firewall.IPTables))
				want := s.show(t)
				if strings.Contains(want, "comment") || strings.Count(want, "--random-fully") != 4 || strings.Count(want, "-j FLANNEL-") != 4 {
					t.Errorf("want all rules with random ports and without comments:\n%s", want)
				}
				for _, f := range families(variant) {
					sh(t, f.command+" -F FORWARD; "+f.command+" -t nat -F FLANNEL-POSTRTG")
					eventually.Nil(t, "repaired", func() error {
						if got := s.show(t); got != want {
							return fmt.Errorf("there is\n%s", got)
						}
						return nil
					})
				}
				stop()
				again := open(t, 0)
				defer again.Close()
				if n := apply(t, again, both(firewall.IPTables)); n != 0 {
					t.Errorf("a restart wrote %d chains", n)
				}
				if _, err := Cleanup(t.Context(), firewall.Options{Log: quiet}, false); err != nil {
					t.Error(err)
				}
				if left := s.show(t); strings.Contains(left, "-A ") {
					t.Errorf("left by the cleanup:\n%s", left)
				}
			})
		})
	}
}

// A table whose rules are refused does not keep the rules of the other table from being written and repaired, and they
// are not written again whenever the refused ones are tried.
func TestRefusedTable(t *testing.T) {
	for variant, s := range variants {
		t.Run(variant, func(t *testing.T) {
			nstest.Run(t, func(t *testing.T) { besideRefused(t, s.setup, families(variant)) })
		})
	}
}

func besideRefused(t *testing.T, setup string, families []family) {
	sh(t, setup)
	withoutExtensions(t, "mark") // of the rules for masquerading
	missing := func() string {
		for _, f := range families {
			rules, jumps := f.chain(t, "filter", "FLANNEL-FWD"), f.chain(t, "filter", "FORWARD")
			if len(rules) != 2 || !strings.Contains(rules[0], "comment") || len(jumps) != 1 {
				return fmt.Sprintf("%s has %q and %q, want both rules with comments and a jump", f.command, rules, jumps)
			}
		}
		return ""
	}
	fw := open(t, 300*time.Millisecond)
	defer fw.Close()
	try := func() int {
		n, err := fw.Apply(t.Context(), both(firewall.IPTables))
		if err == nil || strings.Count(err.Error(), "xt_mark") != len(families) {
			t.Fatalf("%d chains, error %v, want one for each family", n, err)
		}
		return n
	}
	try()
	if what := missing(); what != "" {
		t.Fatal(what)
	}
	for _, f := range families {
		sh(t, f.command+" -F FORWARD")
	}
	for start := time.Now(); missing() != ""; {
		<-fw.Changes()
		if try(); time.Since(start) > patience {
			t.Fatalf("not repaired: %s", missing())
		}
	}
	for range 3 {
		<-fw.Changes()
		if n := try(); n != 0 {
			t.Errorf("%d chains are written again", n)
		}
	}
}

// A failure that passes does not cost the rules a part of theirs.
func TestPassingFailureOmitsNothing(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		dir := t.TempDir()
		restore, err := exec.LookPath("iptables-nft-restore")
		if err != nil {
			t.Fatal(err)
		}
		// The first three runs fail, which are all that one sync makes.
		fail := "#!/bin/sh\necho >>" + dir + "/runs\nif [ $(wc -l <" + dir + "/runs) -le 3 ]; then echo 'Cannot allocate memory' >&2; exit 4; fi\n" +
			"exec " + restore + " \"$@\"\n"
		if err := os.WriteFile(filepath.Join(dir, "iptables-nft-restore"), []byte(fail), 0o755); err != nil {
			t.Fatal(err)
		}
		t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
		f := open(t, 0)
		defer f.Close()
		apply(t, f, both(firewall.IPTables))
		if rules := variants["nft"].show(t); strings.Count(rules, "--random-fully") != 4 || strings.Count(rules, "--comment") == 0 || f.omitted != (omitted{}) {
			t.Errorf("omitted for good: %+v:\n%s", f.omitted, rules)
		}
	})
}

// The error names the module, its package and the way without it.
func TestMissingExtensionIsNamed(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		withoutExtensions(t, "mark")
		f := open(t, 0)
		defer f.Close()
		_, err := f.Apply(t.Context(), both(firewall.IPTables))
		for _, want := range []string{"xt_mark", "kernel-modules-extra", "EnableNFTables"} {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("error %v, want one that names %s", err, want)
			}
		}
	})
	for said, want := range map[string]string{
		"iptables-restore: Warning: Extension comment revision 0 not supported, missing kernel module?": "xt_comment,",
		"Couldn't load target `MASQUERADE':No such file or directory":                                   "xt_MASQUERADE,",
		"iptables-restore: line 5 failed":                                                               "xt_mark, xt_MASQUERADE",
	} {
		for _, v := range []variant{variantNFT, variantLegacy} {
			if got := extensionAdvice(v, said); !strings.Contains(got, want) || strings.Contains(got, "nft_compat") != (v == variantNFT) {
				t.Errorf("%s: %s: %s; want %s", v, said, got, want)
			}
		}
	}
}

// The modules of a table that iptables-legacy cannot create are named, by what that says of a table of no kernel.
func TestMissingLegacyTableIsNamed(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		p := newIPTablesPlace("", "iptables", "-legacy", variantLegacy, "none")
		err := p.write(t.Context(), change{script: "*none\nCOMMIT\n"})
		if err == nil {
			t.Fatal("written")
		}
		if got := extensionAdvice(variantLegacy, err.Error()); !strings.Contains(got, "iptable_nat") {
			t.Errorf("%v: %s", err, got)
		}
	})
}

// A kernel without the modules of nft's tables is said to lack them. The errors are those that it returns, where one that
// has them does not.
func TestMissingNFTModulesAreNamed(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		p, want := nftPlace{family: nftables.TableFamilyIPv4}, firewall.Rules(both(firewall.NFTables), v4)
		faults := nstest.NewFaults(t)
		for _, errno := range []unix.Errno{unix.ENOENT, unix.EOPNOTSUPP, unix.EINVAL} {
			refused := 0
			for n, met := 1, true; met; n++ { // the last one does not fail
				faults.Fail(n, errno)
				_, err := p.sync(t.Context(), want)
				met = faults.Fail(0, 0) >= n
				if errors.Is(err, errRefused) {
					if refused++; !strings.Contains(err.Error(), "nft_masq") {
						t.Errorf("%v", err)
					}
				}
				if _, err := p.sync(t.Context(), nil); err != nil {
					t.Fatal(err)
				}
			}
			if refused == 0 {
				t.Errorf("%v is not taken for a refusal, whatever call fails", errno)
			}
		}
	})
}
