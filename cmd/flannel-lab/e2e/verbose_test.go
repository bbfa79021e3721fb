package e2e

import (
	"errors"
	"strings"
	"testing"

	"flannel/cmd/flannel-lab/lab"
	"flannel/internal/test/logtest"
)

// With -v=4 the log has the decisions: one line for the choice of the underlay, for each pass that changed
// something, and for each request to the store. It does not have WireGuard's private key.
func TestVerboseLog(t *testing.T) {
	t.Parallel()
	l := start(t, lab.Options{Nodes: 2}, `{"Type":"wireguard"}`, "-v=4")
	n := l.Nodes[0]
	hasPeers(t, n, 1)
	within(t, "the decisions are logged", func() error {
		debug := logtest.Parse(n.Log()).With("level=DEBUG")
		for what, lines := range map[string]logtest.Records{
			"the underlay": debug.With("why=--iface=eth0", "untried=0").Naming("interface", "eth0"),
			"a pass":       debug.With("refused=0").Naming("tables", "routes: ", "added"),
			"a list":       debug.With("verb=Range", "result=ok").Naming("object", "/subnets/*"),
			"a write":      debug.With("verb=Txn", "result=ok").Naming("object", "/subnets/"),
		} {
			if len(lines) == 0 || lines[0]["took"] == "" && what != "the underlay" {
				return errors.New(what + " is not logged")
			}
		}
		return nil
	})
	key := strings.TrimSpace(in(t, n.Namespaces, "wg show flannel-wg private-key"))
	if len(key) < 40 || strings.Contains(n.Log(), key) {
		t.Errorf("the private key (%d characters) is in the log", len(key))
	}
}
