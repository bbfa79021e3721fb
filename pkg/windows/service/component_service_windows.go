package service

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/windows"
	"golang.org/x/sys/windows/registry"
	"golang.org/x/sys/windows/svc"
	"golang.org/x/sys/windows/svc/mgr"
)

// This file has the part of Components that is about services. The type is in component.go;
// Start, which chooses between a service and a process, is in component_windows.go. The
// commands node start, node stop and node reset call the methods, one after the other.

// found is what the registry has of a service.
type found struct {
	exists  bool
	own     bool   // Components created it: its description is mark
	command string // its command line, as one text
}

// lookUpService reads a service in the registry, for which any user has the rights.
func lookUpService(name string) (registered found, err error) {
	key, err := registry.OpenKey(registry.LOCAL_MACHINE, servicesKey+name, registry.QUERY_VALUE)
	if errors.Is(err, registry.ErrNotExist) {
		return registered, nil
	} else if err != nil {
		return registered, fmt.Errorf("look up the service %s: %w", name, err)
	}
	defer key.Close() //nolint:errcheck // only releases a handle
	description, _, err := key.GetStringValue("Description")
	if err != nil && !errors.Is(err, registry.ErrNotExist) {
		return registered, fmt.Errorf("look up the service %s: %w", name, err)
	}
	registered.command, _, err = key.GetStringValue("ImagePath")
	if errors.Is(err, registry.ErrNotExist) { // only a key of that name
		return found{}, nil
	} else if err != nil {
		return registered, fmt.Errorf("look up the service %s: %w", name, err)
	}
	registered.exists, registered.own = true, description == mark
	return registered, nil
}

// HasService reports whether there is a service that Components created for a component.
func (Components) HasService(name string) (bool, error) {
	registered, err := lookUpService(name)
	return registered.own, err
}

// serviceRuns reports whether a service exists and runs.
func serviceRuns(name string) (runs bool, err error) {
	err = withService(name, windows.SERVICE_QUERY_STATUS, func(s *mgr.Service) error {
		status, err := s.Query()
		runs = status.State == svc.Running
		return err
	})
	if errors.Is(err, windows.ERROR_SERVICE_DOES_NOT_EXIST) {
		err = nil
	}
	return runs, explainOf(name, err)
}

// startNamed starts a service unless it runs.
func startNamed(ctx context.Context, name string, out io.Writer) error {
	show(out, "starting the service "+name)
	return explainOf(name, withService(name, windows.SERVICE_START|windows.SERVICE_QUERY_STATUS, func(s *mgr.Service) error { return startService(ctx, s, out) }))
}

// stopNamed stops a service if it runs.
func stopNamed(ctx context.Context, name string, out io.Writer) error {
	show(out, "stopping the service "+name)
	return explainOf(name, withService(name, windows.SERVICE_STOP|windows.SERVICE_QUERY_STATUS, func(s *mgr.Service) error { return stopService(ctx, s, out) }))
}

// explainOf adds the name of the service to an error. Unlike explain, it names no command:
// the service need not be flanneld's.
func explainOf(name string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("the service %s: %w", name, err)
}

// startOwnService creates the service of a component, or changes the one that
// Components created, and starts it. Start has excluded services of others: the one that
// is registered is own, if it exists. A service that has the right command is only
// started, even if its program is missing: the service manager's error says so.
func (c Components) startOwnService(ctx context.Context, what Component, registered found) error {
	words := append([]string{what.Program, "--windows-service"}, what.Args...) // a flag of kubelet and kube-proxy
	// A service has no stderr. Kubernetes includes this program, which writes it to a file.
	runner := filepath.Join(filepath.Dir(what.Program), "kube-log-runner.exe")
	if _, err := os.Stat(runner); err == nil {
		words = append([]string{runner, "-log-file=" + filepath.Join(c.LogDir, what.Name+".log")}, words...)
	}
	changed := registered.exists && registered.command != windows.ComposeCommandLine(words)
	if !registered.exists || changed {
		if err := what.needProgram(); err != nil {
			return err
		}
	}
	switch {
	case !registered.exists:
		if err := createService(what, words); err != nil {
			return explainOf(what.Name, err)
		}
		c.say("created the service %s", what.Name)
	case changed:
		if err := stopNamed(ctx, what.Name, c.Out); err != nil {
			return err
		}
		if err := changeCommand(what.Name, words); err != nil {
			return explainOf(what.Name, err)
		}
		c.say("changed the service %s", what.Name)
	}
	return startNamed(ctx, what.Name, c.Out)
}

// createService creates the service of a component; words are its command line.
func createService(what Component, words []string) error {
	return withManager(windows.SC_MANAGER_ALL_ACCESS, func(m *mgr.Mgr) error {
		config := mgr.Config{StartType: mgr.StartAutomatic, ErrorControl: mgr.ErrorNormal, Description: mark}
		if what.Manual { // after a boot, the task flannel-node starts it, by node start
			config.StartType = mgr.StartManual
		}
		s, err := m.CreateService(what.Name, words[0], config, words[1:]...)
		if err != nil {
			return fmt.Errorf("create it: %w", err)
		}
		defer s.Close() //nolint:errcheck // only releases a handle
		// After the first failure, and after each later one. failuresReset without a failure
		// makes the next one the first again.
		restart := []mgr.RecoveryAction{{Type: mgr.ServiceRestart, Delay: 5 * time.Second}, {Type: mgr.ServiceRestart, Delay: 30 * time.Second}}
		if err := s.SetRecoveryActions(restart, uint32(failuresReset/time.Second)); err != nil {
			return fmt.Errorf("have it restarted: %w", errors.Join(err, s.Delete())) // or the next run would take it for complete
		}
		return nil
	})
}

// changeCommand replaces the command line of a service, from its next start on.
func changeCommand(name string, words []string) error {
	command, err := windows.UTF16PtrFromString(windows.ComposeCommandLine(words))
	if err != nil {
		return err
	}
	return withService(name, windows.SERVICE_CHANGE_CONFIG, func(s *mgr.Service) error {
		return windows.ChangeServiceConfig(s.Handle, windows.SERVICE_NO_CHANGE, windows.SERVICE_NO_CHANGE, windows.SERVICE_NO_CHANGE,
			command, nil, nil, nil, nil, nil, nil)
	})
}

// RemoveService deletes the service of a component, if Components created it. The caller
// has stopped it: Windows deletes a running service only when it ends.
func (c Components) RemoveService(name string) error {
	registered, err := lookUpService(name)
	if err != nil || !registered.own {
		return err
	}
	if err := withService(name, windows.DELETE, (*mgr.Service).Delete); err != nil {
		return explainOf(name, err)
	}
	c.say("removed the service %s", name)
	return nil
}
