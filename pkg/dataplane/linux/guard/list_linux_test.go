package guard

import (
	"os/exec"
	"testing"

	"flannel/pkg/dataplane/driver"
	"flannel/pkg/nstest"
)

// nft can show the table to administrators, and other programs can parse what it prints.
func TestTableCanBeListed(t *testing.T) {
	for name, c := range map[string]Config{
		"vxlan": {UDP: []Outer{{Port: 8472, VNI: 1}}}, "udp": {UDP: []Outer{{Port: 8285}}}, "ipip": {IPIP: true}, "host-gw": {},
	} {
		t.Run(name, func(t *testing.T) {
			nstest.Run(t, func(t *testing.T) {
				l := newLink(t)
				g := l.guard(paths...)
				l.apply(g, c)
				if err := g.Prune(t.Context(), driver.Options{}); err != nil {
					t.Fatal(err)
				}
				for _, form := range []string{"-s", "-j"} {
					if out, err := exec.CommandContext(t.Context(), "nft", form, "list", "ruleset").CombinedOutput(); err != nil {
						t.Errorf("nft %s: %v %s", form, err, out)
					}
				}
			})
		})
	}
}
