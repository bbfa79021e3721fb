package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/windows/registry"
	"golang.org/x/sys/windows/svc"
	"golang.org/x/sys/windows/svc/mgr"

	"flannel/internal/test/eventually"
	"flannel/internal/test/logtest"
	"flannel/pkg/conf"
	"flannel/pkg/windows/service"
)

// workOf are the arguments of a flanneld that goes on until it is stopped and needs no network: it keeps a file in
// place.
func workOf(t *testing.T) (args []string, copied string) {
	t.Helper()
	dir := t.TempDir()
	from, to := filepath.Join(dir, "a conf"), filepath.Join(dir, "net d", "10-flannel.conflist")
	if err := os.WriteFile(from, []byte(`{"name":"cbr0","plugins":[{"type":"flannel"}]}`), 0o644); err != nil {
		t.Fatal(err)
	}
	return []string{"--log-file=" + filepath.Join(dir, "flanneld.log"), "install-cni", "--conf-from=" + from, "--conf-to=" + to, "--watch"}, to
}

// Keys of HKEY_LOCAL_MACHINE.
const (
	serviceKey = `SYSTEM\CurrentControlSet\Services\` + service.Name
	sourceKey  = `SYSTEM\CurrentControlSet\Services\EventLog\Application\` + service.Name
)

// TestServiceLife has the system's own service manager run the test binary as flanneld.
func TestServiceLife(t *testing.T) {
	do := func(verb string) (string, error) {
		code, out, problems := flanneldSays(t.Context(), append([]string{"service"}, strings.Fields(verb)...)...)
		if code != exitOK {
			return out, errors.New(problems)
		}
		return out, nil
	}
	works := func(verb string, names ...string) {
		t.Helper()
		if out, err := do(verb); err != nil || !logtest.Names(out, names...) {
			t.Fatalf("%s says %q, %v; want %q", verb, out, err, names)
		}
	}
	refuses := func(verb string, names ...string) {
		t.Helper()
		if out, err := do(verb); err == nil || !logtest.Names(err.Error(), names...) {
			t.Fatalf("%s says %q, %v; want an error that names %q", verb, out, err, names)
		}
	}
	if out, err := do("uninstall"); err != nil {
		t.Fatal(out, err)
	}
	t.Cleanup(func() {
		if out, err := do("uninstall"); err != nil {
			t.Error(out, err)
		}
	})
	refuses("status", service.Name, "service install")
	refuses("start", service.Name, "service install")
	works("uninstall")
	works("install --env NODE_NAME=a -- --kube-subnet-mgr", "service start")
	works("install -- --etcd-username=u --etcd-password=hunter2")
	if out, _ := do("status"); !strings.Contains(out, "--etcd-password="+conf.Redacted) || strings.Contains(out, "hunter2") {
		t.Errorf("the status is %s", out)
	}
	works("install -- --kube-subnet-mgr=false")
	refuses("status", service.StateName(svc.Stopped))

	args, copied := workOf(t)
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	config := service.Config{Command: append(append([]string{exe}, args...), "service", "run"), Env: []string{"NODE_NAME=w1", "OTHER=a b"}}
	if err := service.Control(t.Context(), "install", config, io.Discard); err != nil {
		t.Fatal(err)
	}
	key, err := registry.OpenKey(registry.LOCAL_MACHINE, serviceKey, registry.QUERY_VALUE)
	if err != nil {
		t.Fatal(err)
	}
	defer key.Close()
	if env, _, err := key.GetStringsValue("Environment"); err != nil || !slices.Equal(env, config.Env) {
		t.Errorf("its variables, which Wine does not hand on: %q, %v", env, err)
	}
	for range 2 {
		works("start")
		process := serviceStatus(t).ProcessId
		if works("start"); serviceStatus(t).ProcessId != process {
			t.Error("it was started again")
		}
		works("status", service.StateName(svc.Running), fmt.Sprint(process))
		eventually.True(t, "the service works", exists(copied))
		start := time.Now()
		works("stop")
		t.Logf("stopped within %v", time.Since(start).Round(10*time.Millisecond))
		works("stop")
		if _, err := do("status"); err == nil || !strings.HasSuffix(strings.TrimSpace(err.Error()), service.StateName(svc.Stopped)) {
			t.Errorf("after it stopped without an error, the status is %v", err)
		}
		if err := os.Remove(copied); err != nil {
			t.Fatal(err)
		}
	}
	text, err := os.ReadFile(strings.TrimPrefix(args[0], "--log-file="))
	if err != nil || len(logtest.Parse(string(text)).With("level=INFO", "path="+copied)) != 2 {
		t.Errorf("the service's log: %q, %v", text, err)
	}
	installsAndStarts(t, config)
	failsHalfway(t, config)
	works("uninstall")
	refuses("stop", service.Name)
	if key, err := registry.OpenKey(registry.LOCAL_MACHINE, sourceKey, registry.QUERY_VALUE); !errors.Is(err, registry.ErrNotExist) {
		t.Errorf("the source of the event log is there still: %v, %v", key, err)
	}
}

// failsHalfway changes a service, and fails at one of its properties: the next install finds that the service is to be changed.
func failsHalfway(t *testing.T, config service.Config) {
	t.Helper()
	config.Command, config.Env = append(slices.Clone(config.Command[:1]), "service", "run"), []string{"NODE_NAME=\x00"}
	if err := service.Control(t.Context(), "install", config, io.Discard); err == nil {
		t.Error("a variable with a NUL was set")
	}
	if command, _, err := service.Settings(); err != nil || slices.Equal(command, config.Command) {
		t.Errorf("the service has the command line %q already, %v", command, err)
	}
}

// installsAndStarts installs a service that is there: it runs on unless something of it has changed, now or when it was installed
// without being started.
func installsAndStarts(t *testing.T, config service.Config) {
	t.Helper()
	process := uint32(0)
	for _, c := range []struct {
		node    string
		start   bool
		another bool // process
	}{{"w1", true, true}, {"w1", true, false}, {"w2", true, true}, {"w3", false, false}, {"w3", false, false}, {"w3", true, true}, {"w3", true, false}} {
		config.Env[0], config.Start = "NODE_NAME="+c.node, c.start
		var said strings.Builder
		if err := service.Control(t.Context(), "install", config, &said); err != nil || logtest.Names(said.String(), "service stop") == c.start {
			t.Errorf("install for %s, --start: %t, says %q, %v", c.node, c.start, &said, err)
		}
		now := serviceStatus(t)
		if now.State != svc.Running || (now.ProcessId != process) != c.another {
			t.Errorf("install for %s, --start: %t: %+v, the process was %d", c.node, c.start, now, process)
		}
		said.Reset()
		if err := service.Control(t.Context(), "start", config, &said); err != nil || logtest.Names(said.String(), "service stop") == c.start {
			t.Errorf("start for %s says %q, %v", c.node, &said, err)
		}
		said.Reset()
		if err := service.Control(t.Context(), "status", config, &said); err != nil || logtest.Names(said.String(), "changed") == c.start {
			t.Errorf("status for %s says %q, %v", c.node, &said, err)
		}
		process = now.ProcessId
	}
}

// serviceStatus is what the service manager has of the service.
func serviceStatus(t *testing.T) (status svc.Status) {
	t.Helper()
	m, err := mgr.Connect()
	if err != nil {
		t.Fatal(err)
	}
	defer m.Disconnect() //nolint:errcheck // it was only asked
	s, err := m.OpenService(service.Name)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close() //nolint:errcheck // likewise
	if status, err = s.Query(); err != nil {
		t.Fatal(err)
	}
	return status
}

// TestServiceFails has the service manager start what cannot work.
func TestServiceFails(t *testing.T) {
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := service.Control(context.Background(), "uninstall", service.Config{}, io.Discard); err != nil {
			t.Error(err)
		}
	})
	start := func(program string, args ...string) error {
		config := service.Config{Command: append(append([]string{program}, args...), "service", "run")}
		if err := service.Control(t.Context(), "install", config, io.Discard); err != nil {
			t.Fatal(err)
		}
		return service.Control(t.Context(), "start", service.Config{}, io.Discard)
	}
	// Whether start sees that depends on who is faster.
	err = start(exe, "--nonsense")
	eventually.True(t, "the status tells why it ended", func() bool {
		err := service.Control(t.Context(), "status", service.Config{}, io.Discard)
		return err != nil && logtest.Names(err.Error(), service.StateName(svc.Stopped), fmt.Sprint(exitUsage))
	})
	t.Log(err)
	if err := start(filepath.Join(t.TempDir(), "gone.exe")); err == nil || !logtest.Names(err.Error(), "service install") {
		t.Errorf("no program: %v", err)
	}
}

// TestCtrlC ends a flanneld by Ctrl-C, which Wine makes of Unix' signal.
func TestCtrlC(t *testing.T) {
	args, copied := workOf(t)
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(exe, args...)
	cmd.Env = append(os.Environ(), beFlanneld+"=1")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	eventually.True(t, "it works", exists(copied))
	start := time.Now()
	ours := filepath.Base(filepath.Dir(filepath.Dir(filepath.Dir(copied))))                 // no other process' command line has it
	if _, err := os.StartProcess(`Z:\usr\bin\pkill`, []string{"pkill", "-INT", "-f", ours}, // -f: those of the test
		&os.ProcAttr{Files: []*os.File{os.Stdin, os.Stdout, os.Stderr}}); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-ended:
		if err != nil {
			t.Errorf("it ended by %v", err)
		}
		t.Logf("ended within %v", time.Since(start).Round(10*time.Millisecond))
	case <-time.After(2 * time.Minute):
		t.Error("it runs on")
	}
}
