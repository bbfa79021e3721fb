package probe

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/windows"
	"golang.org/x/sys/windows/registry"

	"flannel/internal/test/eventually"
	"flannel/internal/test/hnstest/wine"
	"flannel/pkg/doctor"
	"flannel/pkg/underlay"
	driver "flannel/pkg/windows"
)

// TestMain lets copies of the test binary replace other programs: with the
// argument wait-for-input, they run until their input ends.
func TestMain(m *testing.M) {
	if slices.Contains(os.Args, "wait-for-input") {
		_, _ = os.Stdin.Read(make([]byte, 1))
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// start runs this program under another name until the test ends.
func start(t *testing.T, name string, args ...string) (pid int) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	raw, err := os.ReadFile(self)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, raw, 0o755); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(path, args...)
	in, err := cmd.StdinPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = in.Close()
		if err := cmd.Wait(); err != nil {
			t.Error(err)
		}
	})
	return cmd.Process.Pid
}

func TestFirmware(t *testing.T) {
	if windows.NewLazySystemDLL("ntdll.dll").NewProc("wine_get_version").Find() != nil {
		t.Skip("this is a real Windows, whose registry a test must not touch")
	}
	key, _, err := registry.CreateKey(registry.LOCAL_MACHINE, `HARDWARE\DESCRIPTION\System\BIOS`, registry.SET_VALUE)
	if err == nil {
		err = errors.Join(key.SetStringValue("SystemManufacturer", "Some Maker"), key.SetStringValue("SystemProductName", "Model 7"), key.Close())
	}
	if err != nil {
		t.Fatal(err)
	}
	if m, err := firmware(); err != nil || m.String() != "Some Maker Model 7" {
		t.Errorf("%q, %v", m, err)
	}
}

// TestRead calls the DLLs of HNS and of the IP stack, and reads the processes
// of Windows.
func TestRead(t *testing.T) {
	n := newNode(t, bridge())
	wine.Play(t, n.m)
	daemon := start(t, "flanneld.exe", "--etcd-password=hunter2", "wait-for-input", `a "b" c\`, "", "service", "run")
	start(t, "flanneld-x.exe", "wait-for-input", "status")
	start(t, "kubelet.exe", "wait-for-input")
	start(t, "kube-proxy.exe", "wait-for-input", "--hostname-override", "win 1", "--source-vip=10.244.1.2")

	n.o.Underlay = func() (underlay.Snapshot, error) { return driver.ReadUnderlay(underlay.Options{}) }
	s := Read(t.Context(), n.o)
	eventually.True(t, "no handle is open", func() bool { return n.m.OpenHandles() == 0 })
	if len(n.m.Changes()) > 0 || len(n.m.Log()) == 0 {
		t.Errorf("of %d calls, these changed something: %v", len(n.m.Log()), n.m.Changes())
	}
	if !s.Processes.Known || len(s.Processes.Value) != 1 || s.Processes.Value[0].PID != daemon ||
		!slices.Equal(s.Processes.Value[0].Args, []string{"--etcd-password=[redacted]", "wait-for-input", `a "b" c\`, "", "service", "run"}) {
		t.Errorf("daemons: %+v", s.Processes)
	}
	if got := s.Windows.KubeProxy.Value; len(got) != 5 || !strings.HasSuffix(got[0], "kube-proxy.exe") || !slices.Equal(got[2:], []string{"--hostname-override", "win 1", "--source-vip=10.244.1.2"}) {
		t.Errorf("kube-proxy: %+v", s.Windows.KubeProxy)
	}
	// By the DLLs, the machine has the same state as in this process.
	n.report.Node.Underlay.Index = n.m.Admin().Adapter("vEthernet (Ethernet)").Index
	s.Daemon = doctor.Known(doctor.Answer{Report: &n.report})
	verdicts(t, "a bridge", s, map[string]string{"FL102": "ok", "FL103": "skipped", "FL501": "ok: HNS 13.3", "FL502": "ok: cbr0 L2Bridge 10.244.1.0/24 Ethernet", "FL503": "ok: 10.99.0.2",
		"FL504": "ok", "FL507": "ok", "FL508": "ok: 1", "FL510": "ok", "FL513": "warn: containerd", "FL514": "ok", "FL517": "ok",
		"FL519": "fail: 1~routes"})

	files := documents(t.Context(), time.Minute)
	for name, want := range map[string]string{"hns-networks.json": `"cbr0"`, "hns-endpoints.json": `"cbr0_ep"`, "adapters.json": "vEthernet (Ethernet)", "ip-routes.json": "10.99.0.1"} {
		if !strings.Contains(string(files[name]), want) {
			t.Errorf("%s without %s: %s", name, want, files[name])
		}
	}
}
