package daemon

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"flannel/backend"
	"flannel/pkg/daemon/rollout"
	"flannel/pkg/dataplane"
	"flannel/subnet"
)

// linkBackend reaches peers with even numbers directly, and the others by a
// tunnel. Its wire is not visible in a lease, like a port.
type linkBackend struct {
	namedBackend
	port string
}

func (b linkBackend) Wire() backend.Wire {
	w := b.namedBackend.Wire()
	w.Name += " " + b.port
	return w
}

func (b linkBackend) Paths(l *subnet.Lease) ([]*dataplane.Path, error) {
	path := &dataplane.Path{Dst: l.V4.Subnet, Via: l.V4.PublicIP, Device: "eth0", Encap: dataplane.Direct{}}
	if ip := l.V4.PublicIP.As4(); ip[3]%2 != 0 {
		path.Encap = dataplane.IPInIP{}
	}
	return []*dataplane.Path{path}, nil
}

// Only an answer by the tunnel proves a tunnel if a peer that has adopted the
// configuration is behind it, and peers that have not adopted it are not asked.
func TestDirectAnswersProveNoTunnel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAdopting(t, 0)
		a.Parse = func(raw []byte) (subnet.Config, backend.Maker, []string, error) {
			c, _, _, err := parseText(raw)
			port := strings.TrimLeft(c.Backend, "link")
			c.Backend = "link"
			return c, func(backend.Node) (backend.Backend, []string, error) {
				return linkBackend{namedBackend{"link"}, port}, nil, nil
			}, nil, err
		}
		a.n.config, a.n.maker, a.n.backend = subnet.Config{}, nil, nil
		a.in.setConfig([]byte("link1 10.5.0.0/16"))
		if err := a.prepare(t.Context(), a.n, a.in); err != nil {
			t.Fatal(err)
		}
		var mu sync.Mutex
		asked := map[byte]bool{}
		a.Echo = func(_ context.Context, _, to netip.Addr) error {
			mu.Lock()
			defer mu.Unlock()
			asked[to.As4()[2]] = true
			if to.As4()[2]%2 == 0 { // directly
				return nil
			}
			return errors.New("silence")
		}
		soFar := func() map[byte]bool { // the first answer ends a round, while others are still being asked
			mu.Lock()
			defer mu.Unlock()
			return maps.Clone(asked)
		}
		a.peers(4, "link", "")
		a.in.setConfig([]byte("link2 10.5.0.0/16"))
		a.run(untilTrial)
		a.has("no peer has adopted it", "link 2", rollout.Trying, true)
		if asked := soFar(); len(asked) > 0 {
			t.Errorf("peers %v were asked, and have not adopted it", asked)
		}
		a.peers(4, "link", fmt.Sprintf(`{"Adopting":%q}`, rollout.ID("link 2")))
		a.run(5 * time.Second)
		a.has("peers on the link answer", "link 2", rollout.Trying, true)
		synctest.Wait()
		if asked := soFar(); len(asked) != 2 || !asked[3] || !asked[5] {
			t.Errorf("peers %v were asked, want those behind the tunnel", asked)
		}
	})
}
