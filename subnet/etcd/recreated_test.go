package etcd

import (
	"strings"
	"testing"

	"flannel/internal/test/etcdtest"
	"flannel/internal/test/eventually"
)

// The key was deleted and is there again, and Hold receives both events at once. The value says whose the key is now: a
// node with another configuration, too, needs its key, while a value that no node can use is restored.
func TestRecreatedKey(t *testing.T) {
	for name, c := range map[string]struct {
		value string
		lost  bool
	}{
		"garbage":                                      {"garbage", false},
		"an address that no node has":                  {peer("224.0.0.1"), false},
		"an address inside its subnet":                 {peer("10.5.250.7"), false},
		"as it was":                                    {peer("192.168.64.99"), false},
		"as it was earlier":                            {strings.ReplaceAll(peer("192.168.64.99"), mac1, mac2), false},
		"another node":                                 {peer("192.168.64.77"), true},
		"another node with another VNI":                {strings.ReplaceAll(peer("192.168.64.77"), `"VNI":1`, `"VNI":77`), true},
		"another node with another type":               {strings.ReplaceAll(peer("192.168.64.77"), "vxlan", "host-gw"), true},
		"an address that no node has, and another VNI": {strings.ReplaceAll(peer("224.0.0.1"), `"VNI":1`, `"VNI":77`), false},
		"another node, not published yet":              {`{"PublicIP":"192.168.64.77"}`, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			st := outside(t, etcdtest.Start(t))
			n := start(t, st.Endpoints()[0], nil)
			n.SetJudge(judge(t))
			key := n.publish(outOfTheWay("192.168.64.99"), mac1).Name
			st.Delete(t.Context(), key)
			if _, err := st.Put(t.Context(), key, c.value); err != nil {
				t.Fatal(err)
			}
			n.Run()
			if c.lost {
				n.lost(soon)
			} else {
				n.Sees("")
				eventually.True(t, "put back", func() bool { raw, _ := st.value(key); return raw == peer("192.168.64.99") })
				n.notLost()
			}
			if raw, _ := st.value(key); c.lost && raw != c.value {
				t.Errorf("the other node's key is %s", raw)
			}
		})
	}
}
