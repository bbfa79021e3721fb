package service

import (
	"context"
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
	"golang.org/x/sys/windows/svc"
	"golang.org/x/sys/windows/svc/mgr"

	"flannel/internal/test/eventually"
	"flannel/internal/test/filetest"
	"flannel/internal/test/logtest"
	"flannel/pkg/file"
)

// TestMain lets the test program be a component: --windows-service runs it as a service; with two files as arguments, it is
// starting until the first exists, and stopping until the second exists. --stay runs it until it is killed, --fail ends it
// at once.
func TestMain(m *testing.M) {
	switch args := os.Args[1:]; {
	case len(args) == 3 && args[0] == "--windows-service" && filepath.IsAbs(args[1]):
		_ = svc.Run("", idle{startsAt: args[1], stopsAt: args[2]})
	case slices.Contains(args, "--windows-service"):
		_ = svc.Run("", idle{}) // the status of the service says whether it runs
	case slices.Contains(args, "--stay"):
		time.Sleep(time.Hour)
	case slices.Contains(args, "--fail"):
		os.Exit(7)
	default:
		os.Exit(m.Run())
	}
}

// idle is a service that only runs. With two files, it is starting until the first exists, and stopping until the second
// exists. If the first is a directory, the service removes it and fails.
type idle struct{ startsAt, stopsAt string }

const accepted = svc.AcceptStop | svc.AcceptPauseAndContinue

func (i idle) Execute(_ []string, requests <-chan svc.ChangeRequest, status chan<- svc.Status) (bool, uint32) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Hour) // the test program may have been killed
	defer cancel()
	status <- svc.Status{State: svc.StartPending}
	waitFor(ctx, i.startsAt)
	if info, err := os.Stat(i.startsAt); err == nil && info.IsDir() {
		_ = os.Remove(i.startsAt)
		return true, 7
	}
	status <- svc.Status{State: svc.Running, Accepts: accepted}
	for {
		select {
		case <-ctx.Done():
			return false, 0
		case r := <-requests:
			switch r.Cmd {
			case svc.Stop:
				status <- svc.Status{State: svc.StopPending}
				waitFor(ctx, i.stopsAt)
				return false, 0
			case svc.Pause:
				status <- svc.Status{State: svc.Paused, Accepts: accepted}
			default:
				status <- r.CurrentStatus
			}
		}
	}
}

// waitFor waits until a file exists, or until ctx ends; "" returns at once.
func waitFor(ctx context.Context, path string) {
	for path != "" && ctx.Err() == nil {
		if _, err := os.Stat(path); err == nil {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
}

const testedName = "flannel-tested"

// newComponents returns components in a directory, with a copy of the test program.
func newComponents(t *testing.T) (Components, Component, *strings.Builder) {
	t.Helper()
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir, out := t.TempDir(), &strings.Builder{}
	what := Component{Name: testedName, Program: filepath.Join(dir, testedName+".exe"), Args: []string{"--stay", "--iface=Ethernet 2"}}
	if err := file.Copy(program, what.Program, 0o755); err != nil {
		t.Fatal(err)
	}
	c := Components{BaseDir: dir, LogDir: dir, Out: out}
	t.Cleanup(func() {
		if err := c.Stop(context.Background(), testedName); err != nil {
			t.Error(err)
		}
		killTested(t) // a service that is starting does not stop
		if err := c.RemoveService(testedName); err != nil {
			t.Error(err)
		}
		t.Log(out)
	})
	return c, what, out
}

// killTested ends the processes that still run the component, and that of its service, which may be kube-log-runner.exe.
func killTested(t *testing.T) {
	t.Helper()
	ids, err := processesNamed(testedName)
	if err != nil {
		t.Error(err)
	}
	_ = withService(testedName, windows.SERVICE_QUERY_STATUS, func(s *mgr.Service) error { // there may be none
		status, err := s.Query()
		ids = append(ids, status.ProcessId) // 0, which no process can open, if it does not run
		return err
	})
	for _, id := range ids {
		p, err := openProcess(id)
		if err != nil { // it has ended
			continue
		}
		_ = p.kill() // one that is ending may refuse
		p.close()
	}
}

// processOf is the process of a component that runs.
func (c Components) processOf(t *testing.T) uint32 {
	t.Helper()
	if runs, err := c.Running(testedName); !runs || err != nil {
		t.Fatalf("it runs: %t, %v", runs, err)
	}
	r, err := c.readRecord(testedName)
	if err != nil {
		t.Fatal(err)
	}
	return r.ID
}

func TestProcessOfComponent(t *testing.T) {
	c, what, _ := newComponents(t)
	start := func() uint32 {
		t.Helper()
		if err := c.Start(t.Context(), what, false); err != nil {
			t.Fatal(err)
		}
		return c.processOf(t)
	}
	first := start()
	if again := start(); again != first {
		t.Errorf("the same command started another process: %d, %d", first, again)
	}
	what.Args = append(what.Args, "--v=4")
	second := start()
	if second == first {
		t.Error("another command started no other process")
	}
	what.Env = []string{"NODE_NAME=w 2"}
	third := start()
	if again := start(); third == second || again != third {
		t.Errorf("another variable: %d, %d, %d", second, third, again)
	}
	if _, err := os.Stat(filepath.Join(c.LogDir, testedName+".log.1")); err != nil {
		t.Errorf("the former log: %v", err)
	}
	for range 2 {
		if err := c.Stop(t.Context(), testedName); err != nil {
			t.Fatal(err)
		}
		if runs, err := c.Running(testedName); runs || err != nil {
			t.Errorf("after it was stopped, it runs: %t, %v", runs, err)
		}
	}
	what.Args = []string{"--fail"}
	if err := c.startProcess(what, time.Hour); err == nil || !logtest.Names(err.Error(), testedName, "7", filepath.Join(c.LogDir, testedName+".log")) {
		t.Errorf("a program that ends at once: %v", err)
	}
	what.Program = filepath.Join(c.BaseDir, "none", testedName+".exe")
	if err := c.Start(t.Context(), what, false); err == nil || !logtest.Names(err.Error(), what.Program) {
		t.Errorf("a program that is missing: %v", err)
	}
}

// A process that cannot be recorded does not stay: nobody could stop it.
func TestProcessNotRecorded(t *testing.T) {
	c, what, _ := newComponents(t)
	if err := os.WriteFile(filepath.Dir(c.recordFile(testedName)), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := c.Start(t.Context(), what, false); err == nil {
		t.Error("started it")
	}
	eventually.Nil(t, "it has ended", func() error { return noneNamed(testedName) })
}

// A process that is stopped while it starts leaves no open file: t.TempDir could not be deleted.
func TestKilledAtOnce(t *testing.T) {
	c, what, _ := newComponents(t)
	for i := range 40 { // with consoles of Wine (dist/wine.sh), several of them did
		if err := c.startProcess(what, 0); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Duration(i) * 4 * time.Millisecond) // each is stopped a little later
		if err := c.stopProcess(testedName); err != nil {
			t.Fatal(err)
		}
	}
}

// node start --retry, which is recorded, stops what an earlier start left, and goes on. node stop still finds it.
func TestStopOfItself(t *testing.T) {
	c, _, _ := newComponents(t)
	if err := c.Record(testedName); err != nil {
		t.Fatal(err)
	}
	if err := c.Stop(t.Context(), testedName); err != nil {
		t.Error(err)
	}
	if id := c.processOf(t); id != windows.GetCurrentProcessId() {
		t.Errorf("the process %d is recorded", id)
	}
}

// A process of others is neither replaced nor stopped, not even if it has the ID of a former process.
func TestProcessOfOthers(t *testing.T) {
	c, what, _ := newComponents(t)
	other := exec.Command(what.Program, what.Args...)
	if err := other.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = other.Process.Kill(); _ = other.Wait() }()
	former := record{ID: uint32(other.Process.Pid), Started: 1, Command: windows.ComposeCommandLine(append([]string{what.Program}, what.Args...))}
	if err := c.write(testedName, former); err != nil {
		t.Fatal(err)
	}
	if err := c.Start(t.Context(), what, false); err == nil || !logtest.Names(err.Error(), testedName) {
		t.Errorf("it was started beside another one: %v", err)
	}
	if err := c.Stop(t.Context(), testedName); err != nil {
		t.Error(err)
	}
	p, err := openProcess(uint32(other.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	defer p.close()
	if _, ended := p.wait(0); ended {
		t.Error("a process of others was stopped")
	}
	if err := c.write(testedName, former); err != nil {
		t.Fatal(err)
	}
	filetest.GiveAway(t, c.recordFile(testedName))
	if _, err = c.Running(testedName); err == nil || !logtest.Names(err.Error(), c.recordFile(testedName)) {
		t.Errorf("a record of somebody who is no administrator: %v", err)
	}
	if err := os.Remove(c.recordFile(testedName)); err != nil {
		t.Fatal(err)
	}
	if err = os.WriteFile(c.recordFile(testedName), []byte("{"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err = c.Running(testedName); err == nil || !logtest.Names(err.Error(), c.recordFile(testedName)) {
		t.Errorf("a record that cannot be read: %v", err)
	}
	if err := os.Remove(c.recordFile(testedName)); err != nil {
		t.Fatal(err)
	}
}

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
	process, err := openProcess(c.processOf(t))
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
