package service

import (
	"context"
	"errors"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/windows"
	"golang.org/x/sys/windows/registry"
	"golang.org/x/sys/windows/svc"
	"golang.org/x/sys/windows/svc/mgr"

	"flannel/internal/test/logtest"
	"flannel/pkg/file"
)

func TestServiceOfComponent(t *testing.T) {
	c, what, out := newComponents(t)
	what.Manual = true
	asService := true
	start := func() (command string, id uint32) {
		t.Helper()
		if err := c.Start(t.Context(), what, asService); err != nil {
			t.Fatal(err)
		}
		var status svc.Status
		if err := withService(testedName, windows.SERVICE_QUERY_STATUS, func(s *mgr.Service) (err error) {
			status, err = s.Query()
			return err
		}); err != nil || status.State != svc.Running {
			t.Fatalf("its status: %+v, %v", status, err)
		}
		is, err := lookUpService(testedName)
		if err != nil || !is.own {
			t.Errorf("the service: %+v, %v", is, err)
		}
		return is.command, status.ProcessId
	}
	command, first := start()
	if want := windows.ComposeCommandLine(append([]string{what.Program, "--windows-service"}, what.Args...)); command != want {
		t.Errorf("its command: %s, want %s", command, want)
	}
	key, err := registry.OpenKey(registry.LOCAL_MACHINE, servicesKey+testedName, registry.QUERY_VALUE)
	if err != nil {
		t.Fatal(err)
	}
	defer key.Close()
	if mode, _, err := key.GetIntegerValue("Start"); err != nil || mode != mgr.StartManual {
		t.Errorf("it starts in mode %d, %v", mode, err)
	}
	if _, again := start(); again != first {
		t.Error("the same command started the service again")
	}
	what.Args = append(what.Args, "--v=4")
	command, second := start()
	if second == first || !strings.HasSuffix(command, "--v=4") {
		t.Errorf("another command: %s, the same process: %t", command, second == first)
	}
	asService = false // as after the settings of the last start were lost
	if _, again := start(); again != second {
		t.Error("it was started beside its service")
	}
	what.Args = append(what.Args[:len(what.Args)-1], "--v=5")
	if command, third := start(); third == second || !strings.HasSuffix(command, "--v=5") {
		t.Errorf("another command: %s, the same process: %t", command, third == second)
	}
	if r, err := c.readRecord(testedName); r.ID != 0 || err != nil {
		t.Errorf("it has a process %d beside its service, %v", r.ID, err)
	}
	missing := what
	missing.Program = filepath.Join(c.BaseDir, "missing.exe")
	if err := c.Start(t.Context(), missing, true); err == nil || !logtest.Names(err.Error(), missing.Program) {
		t.Errorf("with a program that does not exist: %v", err)
	}
	if runs, err := c.Running(testedName); !runs || err != nil {
		t.Errorf("it runs: %t, %v", runs, err)
	}
	if err := c.Stop(t.Context(), testedName); err != nil {
		t.Fatal(err)
	}
	if runs, err := c.Running(testedName); runs || err != nil {
		t.Errorf("after it was stopped, it runs: %t, %v", runs, err)
	}
	if strings.Contains(out.String(), "network") { // which flanneld alone leaves in place
		t.Errorf("printed:\n%s", out)
	}
	// Kubernetes' program that gives a service a log.
	runner := filepath.Join(c.BaseDir, "kube-log-runner.exe")
	if err := file.Copy(what.Program, runner, 0o755); err != nil {
		t.Fatal(err)
	}
	if command, _ := start(); !logtest.Names(command, runner, "-log-file="+filepath.Join(c.LogDir, testedName+".log"), what.Program) {
		t.Errorf("with a log: %s", command)
	}
}

// A former version started a process although there was a service, after the settings of the last start were lost. The service
// takes the place of the process.
func TestProcessBesideService(t *testing.T) {
	c, what, _ := newComponents(t)
	if err := c.startProcess(what, 0); err != nil {
		t.Fatal(err)
	}
	process, err := openProcess(c.processOf(t), toStop)
	if err != nil {
		t.Fatal(err)
	}
	defer process.close()
	if err := createService(what, []string{what.Program, "--windows-service"}); err != nil {
		t.Fatal(err)
	}
	if err := c.Start(t.Context(), what, false); err != nil {
		t.Fatal(err)
	}
	_, ended := process.wait(0)
	if runs, err := serviceRuns(testedName); !ended || !runs || err != nil {
		t.Errorf("the process has ended: %t; the service runs: %t, %v", ended, runs, err)
	}
	if r, err := c.readRecord(testedName); r.ID != 0 || err != nil {
		t.Errorf("there is still a record of the process %d, %v", r.ID, err)
	}
}

// A service of others is started, and nothing else.
func TestServiceOfOthers(t *testing.T) {
	c, what, out := newComponents(t)
	if err := withManager(windows.SC_MANAGER_ALL_ACCESS, func(m *mgr.Mgr) error {
		s, err := m.CreateService(testedName, what.Program, mgr.Config{StartType: mgr.StartManual}, "--windows-service")
		if err != nil {
			return err
		}
		return s.Close()
	}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := withService(testedName, windows.SERVICE_ALL_ACCESS, func(s *mgr.Service) error {
			return errors.Join(stopService(context.Background(), s, out), s.Delete())
		}); err != nil {
			t.Error(err)
		}
	})
	before, err := lookUpService(testedName)
	if err != nil || !before.exists || before.own {
		t.Fatalf("the service of others: %+v, %v", before, err)
	}
	for _, asService := range []bool{true, false} {
		if err := c.Start(t.Context(), what, asService); err != nil {
			t.Fatal(err)
		}
	}
	if err := c.Stop(t.Context(), testedName); err != nil {
		t.Fatal(err)
	}
	if err := c.RemoveService(testedName); err != nil {
		t.Fatal(err)
	}
	after, err := lookUpService(testedName)
	if runs, _ := c.Running(testedName); err != nil || after != before || !runs {
		t.Errorf("the service of others is %+v, was %+v, %v; it runs: %t", after, before, err, runs)
	}
}
