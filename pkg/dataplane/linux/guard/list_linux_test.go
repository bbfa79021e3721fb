package guard

import (
	"testing"

	"flannel/pkg/dataplane/driver"
	"flannel/pkg/nettest"
	"flannel/pkg/nstest"
)

// nft can show the table to administrators, other programs can parse what it prints, and
// what it saves can be loaded again: with the nft of this machine and that of the image.
func TestTableCanBeListed(t *testing.T) {
	for name, c := range map[string]Config{
		"vxlan": {UDP: []Outer{{Port: 8472, VNI: 1}}}, "udp": {UDP: []Outer{{Port: 8285}}}, "ipip": {IPIP: true}, "host-gw": {},
	} {
		for mode, enforce := range map[string]bool{"audit": false, "enforce": true} {
			t.Run(name+" "+mode, func(t *testing.T) {
				nstest.Run(t, func(t *testing.T) {
					c.Enforce = enforce
					l := newLink(t)
					g := l.guard(paths...)
					l.apply(g, c)
					if err := g.Prune(t.Context(), driver.Options{}); err != nil {
						t.Fatal(err)
					}
					nstest.CheckSavedRules(t, nettest.Tool(t, "image/start"))
				})
			})
		}
	}
}
