package service

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"
	"unsafe"

	"golang.org/x/sys/windows"
	"golang.org/x/sys/windows/svc"
	"golang.org/x/sys/windows/svc/mgr"

	"flannel/pkg/conf"
)

// Control carries out a verb of the command "flanneld service" for the service Name, and prints
// what was done to out. config is for install alone. If nothing is to be done, such as starting a running
// service, that is not an error. Control waits until the service is in each new state: for stateWithin, or until
// ctx ends (Ctrl-C).
func Control(ctx context.Context, verb string, config Config, out io.Writer) error {
	var err error
	switch verb {
	case "install":
		err = withManager(windows.SC_MANAGER_ALL_ACCESS, func(m *mgr.Mgr) error { return install(m, config, out) })
		if err == nil {
			err = withService(Name, windows.SERVICE_START|windows.SERVICE_STOP|windows.SERVICE_QUERY_STATUS, func(s *mgr.Service) error {
				return afterInstall(ctx, s, config.Start, out)
			})
		}
	case "uninstall":
		err = uninstall(ctx, out)
	case "start":
		err = withService(Name, windows.SERVICE_START|windows.SERVICE_QUERY_STATUS, func(s *mgr.Service) error {
			err := startService(ctx, s, out)
			showOutdated(s, out)
			return err
		})
	case "stop":
		err = withService(Name, windows.SERVICE_STOP|windows.SERVICE_QUERY_STATUS, func(s *mgr.Service) error { return stopService(ctx, s, out) })
	case "status":
		err = withService(Name, windows.SERVICE_QUERY_CONFIG|windows.SERVICE_QUERY_STATUS, func(s *mgr.Service) error { return showService(s, out) })
	case "run":
		err = errors.New("only the service manager uses this, at the end of the command line")
	}
	return explain(verb, err)
}

// afterInstall starts the service, if start is set, and else prints whether it is outdated. A
// running service is stopped only if its configuration changed, now or by an earlier install
// without --start: running the same installation again must not interrupt it.
func afterInstall(ctx context.Context, s *mgr.Service, start bool, out io.Writer) error {
	if !start {
		showOutdated(s, out)
		return nil
	}
	outdated, err := isOutdated(s)
	if outdated {
		err = errors.Join(err, stopService(ctx, s, out))
	}
	return errors.Join(err, startService(ctx, s, out))
}

// showOutdated prints how a service that is outdated gets the settings of the last install. It need not have others: a
// later install may have changed them back.
func showOutdated(s *mgr.Service, out io.Writer) {
	if outdated, _ := isOutdated(s); outdated { // an error: unknown
		show(out, "install has changed the service since it was started; to use the last settings: flanneld service stop, and then start")
	}
}

// show prints a message for the user. That it cannot be printed is ignored.
func show(out io.Writer, text string) { _, _ = fmt.Fprintln(out, text) }

// explain adds to an error of the service manager what the user can do about it.
func explain(verb string, err error) error {
	hint := ""
	switch {
	case err == nil:
		return nil
	case errors.Is(err, windows.ERROR_ACCESS_DENIED):
		hint = ": run it as an administrator, in an elevated shell"
	case errors.Is(err, windows.ERROR_SERVICE_DOES_NOT_EXIST):
		return fmt.Errorf("service %s: the service %s does not exist; create it by: flanneld service install -- [flags of the daemon]", verb, Name)
	case errors.Is(err, windows.ERROR_SERVICE_MARKED_FOR_DELETE):
		hint = ": it will be deleted when all programs that have it open, such as services.msc, are closed; close them and try again"
	case errors.Is(err, windows.ERROR_SERVICE_DISABLED):
		hint = ": it was disabled; run service install again"
	case errors.Is(err, windows.ERROR_FILE_NOT_FOUND), errors.Is(err, windows.ERROR_PATH_NOT_FOUND):
		hint = ": the program was moved or deleted; run service install again with its new path"
	}
	return fmt.Errorf("service %s: %w%s", verb, err, hint)
}

// withManager calls do with a connection to the service manager, which has
// the given rights only; mgr.Connect would always request all of them, which only
// administrators have.
func withManager(access uint32, do func(*mgr.Mgr) error) error {
	h, err := windows.OpenSCManager(nil, nil, access)
	if err != nil {
		return fmt.Errorf("connect to the service manager: %w", err)
	}
	m := &mgr.Mgr{Handle: h}
	defer m.Disconnect() //nolint:errcheck // only releases a handle
	return do(m)
}

// withService calls do with a service, opened with the given rights only: any user may
// query the status.
func withService(name string, access uint32, do func(*mgr.Service) error) error {
	return withManager(windows.SC_MANAGER_CONNECT, func(m *mgr.Mgr) error {
		s, err := openService(m, name, access)
		if err != nil {
			return err
		}
		defer s.Close() //nolint:errcheck // only releases a handle
		return do(s)
	})
}

// openService opens a service with the given rights. The caller must close it.
func openService(m *mgr.Mgr, name string, access uint32) (*mgr.Service, error) {
	text, err := windows.UTF16PtrFromString(name)
	if err != nil {
		return nil, err
	}
	h, err := windows.OpenService(m.Handle, text, access)
	if err != nil {
		return nil, fmt.Errorf("open the service: %w", err)
	}
	return &mgr.Service{Name: name, Handle: h}, nil
}

// install creates the service or changes it to config. If it runs with another one, isOutdated
// is true from then on. The service depends on no other one: if it depended on HNS, Windows
// would stop it when HNS restarts.
func install(m *mgr.Mgr, config Config, out io.Writer) error {
	// Everything is set even if it is installed already: somebody may have changed or
	// disabled the service in another way.
	done, changed := "already installed", !installed(config)
	if changed {
		done = "changed; a running service uses the change after its next start"
	}
	s, err := openService(m, Name, windows.SERVICE_ALL_ACCESS)
	if errors.Is(err, windows.ERROR_SERVICE_DOES_NOT_EXIST) {
		done = "installed; start it by: flanneld service start"
		s, err = m.CreateService(Name, config.Command[0], mgr.Config{StartType: mgr.StartAutomatic, ErrorControl: mgr.ErrorNormal}, config.Command[1:]...)
	}
	if err != nil {
		return fmt.Errorf("create the service: %w", err)
	}
	defer s.Close() //nolint:errcheck // only releases a handle
	if err := errors.Join(configure(s, out), addEventSource()); err != nil {
		return err
	}
	// What installed compares is set last: after an error above, the next install finds a service that existed changed.
	set := func() error {
		if err := setEnvironment(config.Env); err != nil {
			return err
		}
		if err := changeCommand(Name, config.Command); err != nil {
			return fmt.Errorf("set the command line: %w", err)
		}
		return nil
	}
	if changed {
		err = outdate(s, set)
	} else {
		err = set()
	}
	if err == nil {
		show(out, done)
	}
	return err
}

// failuresReset is the time without a failure after which the next one counts as the first.
const failuresReset = 10 * time.Minute

// configure sets the properties of the service except for its command line. Of those that an
// old Windows does not support, it prints that they are skipped.
func configure(s *mgr.Service, out io.Writer) error {
	display, description := windows.StringToUTF16Ptr("flanneld, pod network"), windows.StringToUTF16Ptr("Connects the pods of this node with those of the other nodes.")
	// What is nil stays unchanged.
	if err := windows.ChangeServiceConfig(s.Handle, windows.SERVICE_WIN32_OWN_PROCESS, windows.SERVICE_AUTO_START, windows.SERVICE_ERROR_NORMAL,
		nil, nil, nil, nil, nil, nil, display); err != nil {
		return fmt.Errorf("set the start type: %w", err)
	}
	var afterFailures []mgr.RecoveryAction // after the first failure, the second, and any later one
	for _, delay := range []time.Duration{time.Second, 5 * time.Second, 30 * time.Second} {
		afterFailures = append(afterFailures, mgr.RecoveryAction{Type: mgr.ServiceRestart, Delay: delay})
	}
	for _, part := range []struct {
		what string
		err  error
	}{
		{"description", change(s, windows.SERVICE_CONFIG_DESCRIPTION, &windows.SERVICE_DESCRIPTION{Description: description})},
		{"delayed start", change(s, windows.SERVICE_CONFIG_DELAYED_AUTO_START_INFO, &windows.SERVICE_DELAYED_AUTO_START_INFO{IsDelayedAutoStartUp: 1})},
		{"restart", s.SetRecoveryActions(afterFailures, uint32(failuresReset/time.Second))},
		// Restart also after an exit with a non-zero status, not only after a crash.
		{"restart after a failing status", s.SetRecoveryActionsOnNonCrashFailures(true)},
	} {
		if errors.Is(part.err, windows.ERROR_INVALID_LEVEL) {
			show(out, "skipped, not supported by this version of Windows: "+part.what)
		} else if part.err != nil {
			return fmt.Errorf("set %s: %w", part.what, part.err)
		}
	}
	return nil
}

// change sets one of the optional properties. level says which, and with which type of to.
func change[T any](s *mgr.Service, level uint32, to *T) error {
	return windows.ChangeServiceConfig2(s.Handle, level, (*byte)(unsafe.Pointer(to)))
}

// uninstall stops and deletes the service, and waits until it no longer exists:
// Windows keeps it until its process has ended and no program has it open.
func uninstall(ctx context.Context, out io.Writer) error {
	done := "uninstalled; the network stays in place, flanneld cleanup removes it"
	err := withService(Name, windows.SERVICE_ALL_ACCESS, func(s *mgr.Service) error {
		if err := stopService(ctx, s, out); err != nil {
			return err
		}
		return s.Delete()
	})
	if errors.Is(err, windows.ERROR_SERVICE_DOES_NOT_EXIST) {
		done, err = "not installed", nil
	}
	if err != nil && !errors.Is(err, windows.ERROR_SERVICE_MARKED_FOR_DELETE) {
		return fmt.Errorf("delete the service: %w", err)
	}
	// Without waiting, a following install would fail with ERROR_SERVICE_MARKED_FOR_DELETE.
	for deadline := time.Now().Add(stateWithin); ; {
		err := withService(Name, windows.SERVICE_QUERY_STATUS, func(*mgr.Service) error { return nil })
		if errors.Is(err, windows.ERROR_SERVICE_DOES_NOT_EXIST) {
			break
		}
		if time.Now().After(deadline) {
			return windows.ERROR_SERVICE_MARKED_FOR_DELETE
		}
		if err := pause(ctx); err != nil {
			return err
		}
	}
	show(out, done)
	return removeEventSource()
}

// showService prints the command, without secrets, and the state of the service. If the
// service does not run, that is an error, so that scripts notice it.
func showService(s *mgr.Service, out io.Writer) error {
	command, _, err := Settings()
	if err != nil {
		return err
	}
	status, err := query(s)
	if err != nil {
		return err
	}
	shown, _ := conf.RedactArgs(command)
	show(out, "command: "+windows.ComposeCommandLine(shown))
	if status.State != svc.Running {
		return fmt.Errorf("the service is not running: %s%s", StateName(status.State), exitText(status))
	}
	state := fmt.Sprintf("state: running, process %d", status.ProcessId)
	if outdated, _ := isOutdated(s); outdated { // an error: unknown, as to a user who may not look at the process
		state += "; install has changed the service since it was started"
	}
	show(out, state)
	return nil
}
