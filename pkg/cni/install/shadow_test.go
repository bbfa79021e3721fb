package install

import (
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// Container runtimes use the first configuration by name: if that is not ours and does not lead to it, Install names it.
func TestShadowedBy(t *testing.T) {
	type files map[string]string
	other := list("bridge")
	for name, c := range map[string]struct {
		files
		want string
	}{
		"Cilium":                 {files{"05-cilium.conflist": list("cilium-cni")}, "05-cilium.conflist"},
		"minikube":               {files{"1-k8s.conflist": other}, "1-k8s.conflist"},
		"containerd":             {files{"10-containerd-net.conflist": other, "05-old.conflist.cilium_bak": other}, "10-containerd-net.conflist"},
		"a single plugin":        {files{"0-containerd-nat.json": `{"name":"nat","type":"nat"}`, "05-b.conf": other}, "0-containerd-nat.json"},
		"CRI-O":                  {files{"100-crio-bridge.conflist": other, "11-crio-ipv4-bridge.conflist": other}, ""},
		"later ones":             {files{"20-x.conflist": other, "10-weave.conflist": other}, ""},
		"no configurations":      {files{"05-x.conflist": `{"name": "x", "plug`, "05-y.txt": other, "05-z.conf/file": ""}, ""},
		"broken, then another":   {files{"05-x.conflist": "", "06-x.conflist": other}, "06-x.conflist"},
		"flannel and another":    {files{"05-cilium.conflist": list("flannel", "portmap", "cilium-cni")}, ""},
		"Multus with plugins":    {files{"00-multus.conf": `{"name":"multus","type":"multus","delegates":[` + source + `]}`, "05-x.conflist": other}, ""},
		"Multus with a file":     {files{"00-multus.conf": `{"name":"multus","type":"multus-shim","clusterNetwork":"/host/etc/cni/net.d/10-flannel.conflist"}`}, ""},
		"Multus with a network":  {files{"00-multus.conf": `{"name":"multus","type":"multus-shim","clusterNetwork":"cbr0"}`}, ""},
		"Multus with another":    {files{"00-multus.conf": `{"name":"multus","type":"multus-shim","clusterNetwork":"/etc/cni/net.d/10-calico.conflist"}`}, "00-multus.conf"},
		"a name that is similar": {files{"05-x.conflist": `{"name":"no-flannel","plugins":[{"type":"bridge","bridge":"flannel0"}]}`}, "05-x.conflist"},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			for file, text := range c.files {
				n.write(n.path("net.d/"+file), text)
			}
			for _, result := range []string{"written", "unchanged"} {
				done, err := n.Install(slog.New(n.log))
				if err != nil || len(done) != 2 || done[1].Result != result || done[1].ShadowedBy != c.want || done[0].ShadowedBy != "" {
					t.Errorf("%+v, %v; want %q", done, err, c.want)
				}
			}
		})
	}
}

// The keeper warns once of another configuration that runtimes use, and again only of one with another name.
func TestShadowedIsLogged(t *testing.T) {
	n := newNode(t)
	k, now := &keeper{target: n.conf(), log: slog.New(n.log)}, time.Now()
	beside := func(name string) string { return filepath.Join(filepath.Dir(n.ConfTo), name) }
	for i, step := range []struct {
		do   func()
		want int
	}{
		{func() { n.write(beside("20-x.conflist"), list("bridge")) }, 0},
		{func() { n.write(beside("05-x.conflist"), list("bridge")) }, 1},
		{func() { n.write(n.ConfTo, istio) }, 1},
		{func() { n.must(os.Remove(beside("05-x.conflist"))) }, 1},
		{func() { n.write(beside("05-x.conflist"), list("bridge")) }, 1},
		{func() { n.write(beside("04-x.conflist"), list("bridge")) }, 2},
	} {
		step.do()
		_, err := k.pass(now)
		n.must(err)
		warned := n.log.with("WARN", "cause="+causeShadowed, "path="+n.ConfTo)
		if len(warned) != step.want || len(n.log.with("WARN")) != step.want {
			t.Errorf("after step %d: %v", i, n.log)
		}
	}
	if len(n.log.with("used=05-x.conflist")) != 1 || len(n.log.with("used=04-x.conflist")) != 1 {
		t.Error(n.log)
	}
}
