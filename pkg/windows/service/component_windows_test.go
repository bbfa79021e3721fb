package service

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/windows"

	"flannel/internal/test/eventually"
	"flannel/internal/test/filetest"
	"flannel/internal/test/logtest"
)

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
	p, err := openProcess(uint32(other.Process.Pid), toStop)
	if err != nil {
		t.Fatal(err)
	}
	defer p.close()
	if _, ended := p.wait(0); ended {
		t.Error("a process of others was stopped")
	}
	disablePrivilege(t, "SeDebugPrivilege") // which opens every process; a shell or a service that runs the tests may have enabled it
	// Windows lets nobody stop some of its own processes, or even look at them.
	for _, rights := range []windows.ACCESS_MASK{toLook, 0} {
		restrict(t, other.Process, rights)
		if err := c.write(testedName, former); err != nil {
			t.Fatal(err)
		}
		if runs, err := c.Running(testedName); runs || err != nil {
			t.Errorf("a process of others with the rights %#x runs: %t, %v", rights, runs, err)
		}
		if err := c.Stop(t.Context(), testedName); err != nil {
			t.Errorf("stop, with the rights %#x to a process of others: %v", rights, err)
		}
		if _, ended := p.wait(0); ended {
			t.Errorf("a process of others with the rights %#x was stopped", rights)
		}
		if rights != toLook {
			continue
		}
		own := former
		own.Started = p.Started
		if err := c.write(testedName, own); err != nil {
			t.Fatal(err)
		}
		if err := c.Stop(t.Context(), testedName); !errors.Is(err, windows.ERROR_ACCESS_DENIED) {
			t.Errorf("stop a process that may only be looked at: %v", err)
		}
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

// disablePrivilege disables a privilege of this process, which need not have it.
func disablePrivilege(t *testing.T, name string) {
	t.Helper()
	var token windows.Token
	if err := windows.OpenProcessToken(windows.CurrentProcess(), windows.TOKEN_ADJUST_PRIVILEGES, &token); err != nil {
		t.Fatal(err)
	}
	defer token.Close()                                      //nolint:errcheck // only releases a handle
	privileges := windows.Tokenprivileges{PrivilegeCount: 1} // without the attribute that enables it
	if err := windows.LookupPrivilegeValue(nil, windows.StringToUTF16Ptr(name), &privileges.Privileges[0].Luid); err != nil {
		t.Fatal(err)
	}
	if err := windows.AdjustTokenPrivileges(token, false, &privileges, 0, nil, nil); err != nil {
		t.Fatal(err)
	}
}

// restrict leaves everybody only some rights to a process.
func restrict(t *testing.T, p *os.Process, rights windows.ACCESS_MASK) {
	t.Helper()
	h, err := windows.OpenProcess(windows.WRITE_DAC, false, uint32(p.Pid))
	if err != nil {
		t.Fatal(err)
	}
	defer windows.CloseHandle(h) //nolint:errcheck // only releases a handle
	everybody, err := windows.CreateWellKnownSid(windows.WinWorldSid)
	if err != nil {
		t.Fatal(err)
	}
	acl, err := windows.ACLFromEntries([]windows.EXPLICIT_ACCESS{{AccessPermissions: rights, AccessMode: windows.GRANT_ACCESS,
		Trustee: windows.TRUSTEE{TrusteeForm: windows.TRUSTEE_IS_SID, TrusteeValue: windows.TrusteeValueFromSID(everybody)}}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := windows.SetSecurityInfo(h, windows.SE_KERNEL_OBJECT, windows.DACL_SECURITY_INFORMATION, nil, nil, acl, nil); err != nil {
		t.Fatal(err)
	}
}
