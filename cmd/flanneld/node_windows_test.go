package main

import (
	"context"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"
	"golang.org/x/sys/windows/svc"

	"flannel/internal/test/eventually"
	"flannel/internal/test/hnstest"
	"flannel/internal/test/logtest"
	"flannel/pkg/windows/service"
)

func putFile(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// Without a management IP, what is not given is that of the last run; the scripts for PowerShell wrote the same file.
func TestNodeSettings(t *testing.T) {
	dir := t.TempDir()
	settle := func(args ...string) (s nodeSettings, err error) {
		set := pflag.NewFlagSet("", pflag.ContinueOnError)
		s.declare(set)
		if err := set.Parse(args); err != nil {
			t.Fatal(err)
		}
		return s, s.complete(set, dir)
	}
	if _, err := settle("--network-mode=overlay"); err == nil || !logtest.Names(err.Error(), "--management-ip", settingsName) {
		t.Errorf("without an address: %v", err)
	}
	for _, wrong := range []string{"--management-ip=here", "--network-mode=sideways"} {
		if _, err := settle("--management-ip=192.0.2.1", wrong); err == nil || !logtest.Names(err.Error(), wrong[strings.Index(wrong, "=")+1:]) {
			t.Errorf("%s: %v", wrong, err)
		}
	}
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("COMPUTERNAME", "CUT") // after 15 characters
	first, err := settle("--management-ip=192.0.2.1", "--network-mode=overlay", "--log-dir=C:", "--health-port=9000")
	if err != nil || first.LogDir != `C:\` || first.KubeConfig != filepath.Join(dir, "config") || first.NodeName != strings.ToLower(host) || first.Services {
		t.Fatalf("the first run: %+v, %v", first, err)
	}
	first.Services = true
	former := first
	former.NodeName = "cut" // as before the default was changed
	if err := former.keep(dir); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{nil, {"--management-ip=192.0.2.1"}} {
		if same, err := settle(args...); err != nil || same.NodeName != "cut" {
			t.Errorf("another run with %q: %+v, %v", args, same, err)
		}
		if other, err := settle(append(args, "--node-name=other")...); err != nil || other.NodeName != "other" {
			t.Errorf("another run with %q and a name: %+v, %v", args, other, err)
		}
	}
	former.NodeName = "given"
	if err := former.keep(dir); err != nil {
		t.Fatal(err)
	}
	if fresh, err := settle("--management-ip=192.0.2.1"); err != nil || fresh.NodeName != strings.ToLower(host) {
		t.Errorf("with an address: %+v, %v", fresh, err)
	}
	if err := first.keep(dir); err != nil {
		t.Fatal(err)
	}
	if same, err := settle(); err != nil || same != first {
		t.Errorf("another run: %+v, %v, want %+v", same, err, first)
	}
	want := first
	want.InterfaceName = "Ethernet 2"
	if other, err := settle("--interface-name=Ethernet 2"); err != nil || other != want {
		t.Errorf("another run: %+v, %v, want %+v", other, err, want)
	}
	if fresh, err := settle("--management-ip=192.0.2.2"); err != nil || fresh.NetworkMode != "l2bridge" || fresh.HealthPort != 8471 || !fresh.Services {
		t.Errorf("with an address: %+v, %v", fresh, err)
	}
	var keys map[string]any
	text, err := os.ReadFile(filepath.Join(dir, settingsName))
	if err != nil || json.Unmarshal(text, &keys) != nil {
		t.Fatal(string(text), err)
	}
	for _, key := range strings.Fields("ManagementIP ClusterCIDR KubeDnsServiceIP CniBinDir CniConfDir ClientCA HealthPort Services") {
		if _, ok := keys[key]; !ok {
			t.Errorf("the file has no %s: %s", key, text)
		}
	}
	putFile(t, filepath.Join(dir, settingsName), "\ufeff"+string(text)) // by an editor of Windows
	if same, err := settle(); err != nil || same != first {
		t.Errorf("with a byte order mark: %+v, %v", same, err)
	}
	putFile(t, filepath.Join(dir, settingsName), "{")
	if _, err := settle(); err == nil || !logtest.Names(err.Error(), filepath.Join(dir, settingsName)) {
		t.Errorf("a file that cannot be read: %v", err)
	}
}

// TestNodeNeedsFiles runs node start where things are missing: it says which, and starts nothing.
func TestNodeNeedsFiles(t *testing.T) {
	machine(t)
	dir := t.TempDir()
	base := "--base-dir=" + dir
	for _, args := range [][]string{{"start", base}, {"start", base, "--services"}, {"start", base, "--retry"}, {"start", base, "--management-ip=x"}} {
		if code, _, problems := flanneldSays(t.Context(), append([]string{"node"}, args...)...); code != exitUsage || problems == "" {
			t.Errorf("node %q ends with %d and says %s", args, code, problems)
		}
	}
	if _, err := os.Stat(filepath.Join(dir, settingsName)); err == nil {
		t.Error("settings with a mistake are kept")
	}
	code, out, problems := flanneldSays(t.Context(), "node", "start", base, "--management-ip=192.0.2.1", "--network-mode=overlay")
	if code != exitError || !logtest.Names(problems, filepath.Join(dir, "kube-proxy.exe"), filepath.Join(dir, "config")) || !logtest.Names(out, "FL501") {
		t.Errorf("node start ends with %d and says %s%s", code, out, problems)
	}
}

// TestNodeFindsServices runs node start after its settings were lost. Kubelet's service says that the components are services.
func TestNodeFindsServices(t *testing.T) {
	machine(t)
	for _, services := range []bool{false, true} {
		dir := t.TempDir()
		components := service.Components{BaseDir: dir, LogDir: dir, Out: t.Output()}
		if services {
			t.Cleanup(func() {
				if err := components.RemoveService(kubelet); err != nil {
					t.Error(err)
				}
			})
			putFile(t, filepath.Join(dir, "kubelet.exe"), "") // Windows cannot start it
			what := service.Component{Name: kubelet, Program: filepath.Join(dir, "kubelet.exe")}
			if err := components.Start(t.Context(), what, true); err == nil {
				t.Error("an empty program was started")
			}
		}
		if code, out, problems := flanneldSays(t.Context(), "node", "start", "--base-dir="+dir, "--management-ip=192.0.2.1"); code != exitError {
			t.Errorf("node start without files ends with %d and says %s%s", code, out, problems)
		}
		var kept nodeSettings
		if text, err := os.ReadFile(filepath.Join(dir, settingsName)); err != nil || json.Unmarshal(text, &kept) != nil || kept.Services != services {
			t.Errorf("kubelet is a service: %t; the settings: %s, %v", services, text, err)
		}
	}
}

// TestNodeRetryAsServices runs node start --retry --services where the components are processes: it stops these, not itself,
// and goes on.
func TestNodeRetryAsServices(t *testing.T) {
	machine(t)
	dir := t.TempDir()
	last := nodeSettings{ManagementIP: "192.0.2.1", NetworkMode: "overlay", LogDir: dir}
	if err := last.keep(dir); err != nil {
		t.Fatal(err)
	}
	log := filepath.Join(dir, "flannel-node.log")
	putFile(t, log, strings.Repeat("x", 10<<20)) // of earlier runs
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan int)
	go func() {
		code, _, _ := flanneldSays(ctx, "node", "start", "--base-dir="+dir, "--retry", "--services")
		ended <- code
	}()
	eventually.True(t, "the components are services from now on", func() bool {
		var kept nodeSettings
		text, err := os.ReadFile(filepath.Join(dir, settingsName))
		return err == nil && json.Unmarshal(text, &kept) == nil && kept.Services
	})
	stop()
	if code := <-ended; code != exitError { // files are missing, see TestNodeNeedsFiles
		t.Errorf("node start --retry --services ends with %d", code)
	}
	for _, path := range []string{log, log + ".1"} { // the log is rotated
		if info, err := os.Stat(path); err != nil || info.Size() == 0 || info.Size() > 10<<20 {
			t.Errorf("%s: %+v, %v", path, info, err)
		}
	}
	text, err := os.ReadFile(log)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(text), "1/8") {
		t.Errorf("the log has no step:\n%s", text)
	}
	for line := range strings.Lines(string(text)) {
		if !strings.Contains(line, "1/8") && !strings.Contains(line, "--retry") {
			continue
		}
		if _, err := time.Parse(time.DateTime, line[:min(len(line), len(time.DateTime))]); err != nil {
			t.Errorf("the line %q does not begin with the date: %v", line, err)
		}
	}
}

// TestNodeStopService stops the service of flanneld, which flanneld service install has created. A service of another tool
// runs on, also after node reset, and node start --services interrupts neither.
func TestNodeStopService(t *testing.T) {
	machine(t)
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	args, copied := workOf(t)
	t.Cleanup(func() { // before the directory of the service's log is removed
		if err := service.Control(context.Background(), "uninstall", service.Config{}, io.Discard); err != nil {
			t.Error(err)
		}
	})
	config := service.Config{Command: append(append([]string{program}, args...), "service", "run"), Start: true}
	if err := service.Control(t.Context(), "install", config, io.Discard); err != nil {
		t.Fatal(err)
	}
	eventually.True(t, "the service works", exists(copied))
	dir, process := t.TempDir(), serviceStatus(t).ProcessId
	runsOn := func(step string, want int, args ...string) (problems string) {
		t.Helper()
		code, out, problems := flanneldSays(t.Context(), append([]string{"node"}, append(args, "--base-dir="+dir)...)...)
		if status := serviceStatus(t); code != want || status.State != svc.Running || status.ProcessId != process {
			t.Errorf("%s: %q ends with %d; the process %d became %+v\n%s%s", step, args, code, process, status, out, problems)
		}
		return problems
	}
	runsOn("files are missing", exitError, "start", "--services", "--management-ip=192.0.2.1")
	other := service.Config{Command: append([]string{program}, args...)}
	if err := service.Control(t.Context(), "install", other, io.Discard); err != nil {
		t.Fatal(err)
	}
	const of = "a service of another tool"
	runsOn(of, exitOK, "stop")
	if problems := runsOn(of, exitError, "start", "--services", "--management-ip=192.0.2.1"); !logtest.Names(problems, "nssm") {
		t.Errorf("node start --services says %s", problems)
	}
	runsOn(of, exitOK, "reset", "--cni-conf-dir="+dir)
	if err := service.Control(t.Context(), "install", service.Config{Command: config.Command}, io.Discard); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if code, out, problems := flanneldSays(t.Context(), "node", "stop", "--base-dir="+dir); code != exitOK {
			t.Errorf("node stop ends with %d and says %s%s", code, out, problems)
		}
		if status := serviceStatus(t); status.State != svc.Stopped {
			t.Errorf("after node stop, the service is %s", service.StateName(status.State))
		}
	}
}

// TestNodeProxyAsks has node kube-proxy ask flanneld, which does not run, at its socket or at a port.
func TestNodeProxyAsks(t *testing.T) {
	for port, want := range map[string]string{"": "flanneld wait --timeout=1ms\n", "--health-port=9000": "flanneld --healthz-ip=127.0.0.1 --healthz-port=9000 wait --timeout=1ms\n"} {
		args := strings.Fields("node kube-proxy --kube-config=c --node-name=w1 --timeout=1ms " + port)
		if code, out, problems := flanneldSays(t.Context(), args...); code != exitError || !strings.Contains(out, want) {
			t.Errorf("%q ends with %d and says %s%s", args, code, out, problems)
		}
	}
}

// TestDaemonBesideService has a process of flanneld that an earlier node start left: it ends before the service is installed.
func TestDaemonBesideService(t *testing.T) {
	machine(t)
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if code, out, problems := flanneldSays(context.Background(), "service", "uninstall"); code != exitOK {
			t.Errorf("service uninstall ends with %d and says %s%s", code, out, problems)
		}
	})
	dir, timeout := t.TempDir(), time.Millisecond
	components := service.Components{BaseDir: dir, LogDir: dir, Out: t.Output()}
	args, copied := workOf(t)
	what := service.Component{Name: service.Name, Program: program, Args: args, Env: []string{beFlanneld + "=1"}, Other: func() error { return nil }}
	if err := components.Start(t.Context(), what, false); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := components.Stop(context.Background(), service.Name); err != nil {
			t.Error(err)
		}
	})
	eventually.True(t, "the process works", exists(copied))
	n := &nodeStart{call: &call{process: process{stdout: t.Output(), stderr: t.Output()}}, timeout: &timeout, components: components, program: program,
		nodeSettings: nodeSettings{Services: true, LogDir: dir, NodeName: "w1", KubeConfig: filepath.Join(dir, "config"), NetConf: filepath.Join(dir, "net-conf.json"),
			ManagementIP: hnstest.HostAddr.Addr().String(), InterfaceName: "Ethernet", HealthPort: 8471}}
	if err := n.startDaemon(t.Context()); err == nil {
		t.Error("a flanneld without a kubeconfig is ready")
	}
	if command, _, err := service.Settings(); err != nil || !slices.Contains(command, "--iface=Ethernet") {
		t.Errorf("the service has the command line %q, %v", command, err)
	}
	if exists(filepath.Join(dir, "run", service.Name+".json"))() {
		t.Error("the process runs on beside the service")
	}
}

// TestNodeReset removes the files of a node that has no network any more. A dry run removes nothing.
func TestNodeReset(t *testing.T) {
	machine(t)
	dir, conf := t.TempDir(), filepath.Join(t.TempDir(), "net d")
	s := nodeSettings{CNIConfDir: conf}
	if err := s.keep(dir); err != nil {
		t.Fatal(err)
	}
	removed := []string{filepath.Join(conf, cniConfName), filepath.Join(dir, settingsName), filepath.Join(dir, kubeletConfigName), filepath.Join(dir, "SourceVip.json")}
	stays := []string{filepath.Join(dir, "flanneld.exe"), filepath.Join(dir, "config"), filepath.Join(dir, "kubelet.log"), filepath.Join(conf, "20-other.conf")}
	for _, path := range append(append([]string{}, removed...), stays...) {
		if path != filepath.Join(dir, settingsName) {
			putFile(t, path, "{}")
		}
	}
	for _, args := range [][]string{{"--dry-run"}, nil, nil} {
		code, out, problems := flanneldSays(t.Context(), append([]string{"node", "reset", "--base-dir=" + dir, "--cni-conf-dir=" + conf}, args...)...)
		if code != exitOK {
			t.Fatalf("node reset %q ends with %d and says %s%s", args, code, out, problems)
		}
		for _, path := range removed {
			if there := exists(path)(); there != (args != nil) || args != nil && !logtest.Names(out, path) {
				t.Errorf("after node reset %q, %s exists: %t\n%s", args, path, there, out)
			}
		}
		for _, path := range stays {
			if !exists(path)() {
				t.Errorf("node reset %q removed %s", args, path)
			}
		}
	}
	if code, out, problems := flanneldSays(t.Context(), "node", "stop", "--base-dir="+dir); code != exitOK {
		t.Errorf("node stop where nothing runs ends with %d and says %s%s", code, out, problems)
	}
}
