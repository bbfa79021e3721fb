package main

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/windows/registry"

	"flannel/internal/test/eventually"
	"flannel/pkg/doctor"
	"flannel/pkg/status"
)

// TestDoctorOnWindows asks the commands that only look, and cni-conf, on a node that has joined: nothing of HNS and the
// IP stack may change, and what is packed has what a maintainer needs.
func TestDoctorOnWindows(t *testing.T) {
	m := machine(t)
	dir := t.TempDir()
	file, log := filepath.Join(dir, "run", "subnet.env"), filepath.Join(dir, "a log")
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	do := func(args ...string) (int, string, string) {
		t.Helper()
		return flanneldSays(t.Context(), append([]string{"--subnet-file=" + file, "--kube-subnet-mgr", "--kubeconfig-file=" + filepath.Join(dir, "none"), "--log-file=" + log,
			"--net-config-path=" + filepath.Join(dir, "net-conf.json")}, args...)...)
	}
	join(t, dir, file, "10.244.1.0/24")
	if code, out, problems := do("source-vip", "--data-dir="+filepath.Join(dir, "networks")); code != exitOK {
		t.Fatalf("source-vip: %d %s %s", code, out, problems)
	}
	netConf := func(backend string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, "net-conf.json"), []byte(`{"Network": "10.244.0.0/16", "Backend": `+backend+`}`), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	netConf(`{"Type": "host-gw"}`)
	conf := filepath.Join(dir, "net.d", "10-flannel.conf")
	cniConf := []string{"cni-conf", "--to=" + conf, "--service-cidr=10.96.0.0/12", "--management-ip=10.99.0.2"}
	says := func(file string) {
		t.Helper()
		code, out, problems := do(cniConf...)
		raw, err := os.ReadFile(conf)
		if code != exitOK || err != nil || !strings.Contains(string(raw), "10.244.0.0/16") || !strings.Contains(string(raw), file) {
			t.Errorf("cni-conf: %d %s %s, %v\n%s", code, out, problems, err, raw)
		}
	}
	says(`"10.99.0.0/24"`) // bridges reach the nodes without NAT: their network is that of the adapter with the address
	netConf(`{"Type": "vxlan", "VNI": 4096, "Port": 4789}`)
	says(`"ProviderAddress": "10.99.0.2"`)
	inRegistry(t, `"C:\k k\flanneld.exe" "--etcd-password=of the service" --ip-masq "-x-token" hunter3`, "NODE_NAME=win1", "ETCD_PASSWORD=hunter4 and more")
	if err := os.WriteFile(log, []byte("level=INFO msg=joined\n--etcd-password=hunter2\nwith of the service, with hunter3, with hunter4 and more\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	eventually.True(t, "no handle is open", func() bool { return m.OpenHandles() == 0 })
	m.ForgetLog()

	code, out, problems := do("doctor", "--json", "--timeout=1m", "--cni-conf-dir="+filepath.Dir(conf), "--cni-bin-dir="+dir, "--cni-data-dir="+filepath.Join(dir, "networks"),
		"--bundle="+filepath.Join(dir, "b.tar.gz"))
	if code != exitNotReady {
		t.Fatalf("doctor: %d %s %s", code, out, problems)
	}
	if len(m.Changes()) > 0 || len(m.Log()) == 0 || m.OpenHandles() != 0 {
		t.Errorf("of %d calls these changed something: %v; %d handles are open", len(m.Log()), m.Changes(), m.OpenHandles())
	}
	results := map[string]doctor.Result{}
	for _, r := range read[[]doctor.Result](t, out) {
		results[r.Code] = r
	}
	for code, want := range map[string]string{"FL102": "ok", "FL103": "skipped: 10.244.1.0/24", "FL301": "ok: 10-flannel.conf", "FL302": "fail: flannel",
		"FL501": "ok: HNS 13.3", "FL502": "ok: flannel.4096, Overlay of 10.244.1.0/24 on Ethernet", "FL503": "ok: 10.99.0.2", "FL504": "ok", "FL505": "ok: VNI 4096",
		"FL506": "skipped", "FL507": "skipped", "FL508": "skipped", "FL511": "ok: 10.96.0.0/12",
		"FL512": "skipped", "FL513": "warn: kubelet, kube-proxy", "FL514": "ok", "FL515": "ok: flannel.4096, by win-overlay", "FL516": "ok",
		"FL517": "ok", "FL519": "skipped", "FL520": "warn: no rule", "FL521": "ok"} {
		verdict, says, _ := strings.Cut(want, ": ")
		if r := results[code]; string(r.Verdict) != verdict || !strings.Contains(r.Seen, says) {
			t.Errorf("%s is %s, %q; want %s", code, r.Verdict, r.Seen, want)
		}
	}
	checkBundle(t, filepath.Join(dir, "b.tar.gz"))
}

// checkBundle checks that a bundle has what a maintainer needs, and no secret.
func checkBundle(t *testing.T, bundle string) {
	t.Helper()
	files := unpackFile(t, bundle)
	for name, want := range map[string]string{"listings/hns-networks.json": `"flannel.4096"`, "listings/hns-endpoints.json": `"source-vip"`, "listings/adapters.json": "vEthernet (Ethernet)",
		"listings/ip-routes.json": "10.99.0.1", "config/hns.json": "flannel.4096", "config/source-vip.json": "10.244.1.2", "config/subnet.env": "FLANNEL_MTU=1450", "log.txt": "msg=joined",
		"config/cni/10-flannel.conf": "win-overlay", "snapshot.json": `"hnsNetworks"`, "listings/ipconfig.txt": "", "listings/events.txt": "",
		"config/service.json": "NODE_NAME=win1"} {
		if text, there := files[name]; !there || !strings.Contains(text, want) {
			t.Errorf("%s (%t) without %q:\n%s", name, there, want, text)
		}
	}
	for name, text := range files {
		for _, secret := range []string{"hunter", "of the service", "and more"} {
			if strings.Contains(text, secret) {
				t.Errorf("%s has a secret: %s", name, text)
			}
		}
	}
}

// inRegistry leaves in the registry what the service manager has of a service, secrets and all.
func inRegistry(t *testing.T, command string, env ...string) {
	t.Helper()
	key, _, err := registry.CreateKey(registry.LOCAL_MACHINE, serviceKey, registry.SET_VALUE)
	if err != nil {
		t.Fatal(err)
	}
	defer key.Close() //nolint:errcheck // it only frees
	t.Cleanup(func() {
		if err := registry.DeleteKey(registry.LOCAL_MACHINE, serviceKey); err != nil {
			t.Error(err)
		}
	})
	if err := errors.Join(key.SetStringValue("ImagePath", command), key.SetStringsValue("Environment", env)); err != nil {
		t.Fatal(err)
	}
}

// A daemon that does not run, or cannot be asked, is told from one that does.
func TestStatusOnWindows(t *testing.T) {
	code, out, problems := flanneldSays(t.Context(), "--subnet-file="+filepath.Join(t.TempDir(), "subnet.env"), "status")
	switch {
	case code == exitError && strings.Contains(problems, status.ErrNoSockets.Error()): // Wine before version 10
	case code == exitNotRunning && strings.Contains(problems, status.ErrNotRunning.Error()):
	default:
		t.Errorf("%d %s %s", code, out, problems)
	}
}
