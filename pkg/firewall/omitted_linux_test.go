package firewall

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"flannel/pkg/nstest"
)

// A host whose iptables or kernel has no extension for comments gets all rules, without comments.
func TestWithoutComments(t *testing.T) {
	for variant, s := range variants {
		t.Run(variant, func(t *testing.T) {
			nstest.Run(t, func(t *testing.T) {
				sh(t, s.setup)
				withoutExtensions(t, "comment")
				f := open(t, 300*time.Millisecond)
				stop := serve(t, f, both(IPTables))
				want := s.show(t)
				if strings.Contains(want, "comment") || strings.Count(want, "--random-fully") != 4 || strings.Count(want, "-j FLANNEL-") != 4 {
					t.Errorf("want all rules with random ports and without comments:\n%s", want)
				}
				for _, f := range families(variant) {
					sh(t, f.command+" -F FORWARD; "+f.command+" -t nat -F FLANNEL-POSTRTG")
					for start := time.Now(); s.show(t) != want; time.Sleep(20 * time.Millisecond) {
						if time.Since(start) > patience {
							t.Fatalf("not repaired:\n%s", s.show(t))
						}
					}
				}
				stop()
				again := open(t, 0)
				defer again.Close()
				if n := apply(t, again, both(IPTables)); n != 0 {
					t.Errorf("a restart wrote %d chains", n)
				}
				if _, err := Cleanup(t.Context(), Options{Log: quiet}, false); err != nil {
					t.Error(err)
				}
				if left := s.show(t); strings.Contains(left, "-A ") {
					t.Errorf("left by the cleanup:\n%s", left)
				}
			})
		})
	}
}

// A failure that passes does not cost the rules a part of theirs.
func TestPassingFailureOmitsNothing(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		dir := t.TempDir()
		// The first three runs fail, which are all that one sync makes.
		fail := "#!/bin/sh\necho >>" + dir + "/runs\nif [ $(wc -l <" + dir + "/runs) -le 3 ]; then echo 'Cannot allocate memory' >&2; exit 4; fi\n" +
			"exec /usr/sbin/iptables-nft-restore \"$@\"\n"
		if err := os.WriteFile(filepath.Join(dir, "iptables-nft-restore"), []byte(fail), 0o755); err != nil {
			t.Fatal(err)
		}
		t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
		f := open(t, 0)
		defer f.Close()
		apply(t, f, both(IPTables))
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
		_, err := f.Apply(t.Context(), both(IPTables))
		for _, want := range []string{"xt_mark", "kernel-modules-extra", "EnableNFTables"} {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("error %v, want one that names %s", err, want)
			}
		}
	})
	for said, want := range map[string]string{
		"iptables-restore: Warning: Extension comment revision 0 not supported, missing kernel module?": "xt_comment ",
		"Couldn't load target `MASQUERADE':No such file or directory":                                   "xt_MASQUERADE ",
		"iptables-restore: line 5 failed":                                                               "nft_compat, xt_mark",
	} {
		if got := extensionAdvice(said); !strings.Contains(got, want) {
			t.Errorf("%s: %s; want %s", said, got, want)
		}
	}
}
