// This file reads and writes what a service has in the registry, where the service
// manager has no API for it or wants more rights.

package service

import (
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sys/windows"
	"golang.org/x/sys/windows/registry"
	"golang.org/x/sys/windows/svc/eventlog"
	"golang.org/x/sys/windows/svc/mgr"
)

// Keys of HKEY_LOCAL_MACHINE.
const (
	servicesKey = `SYSTEM\CurrentControlSet\Services\`
	serviceKey  = servicesKey + Name
	sourceKey   = `SYSTEM\CurrentControlSet\Services\EventLog\Application\` + Name
)

// setEnvironment replaces the variables of the service. The service manager passes
// them to the process in addition to the system's; it has no API to set them.
func setEnvironment(env []string) error {
	key, err := registry.OpenKey(registry.LOCAL_MACHINE, serviceKey, registry.SET_VALUE)
	if err != nil {
		return fmt.Errorf("set the service's variables: %w", err)
	}
	defer key.Close() //nolint:errcheck // only releases a handle
	if len(env) > 0 {
		err = key.SetStringsValue("Environment", env)
	} else {
		err = key.DeleteValue("Environment")
	}
	if err != nil && !errors.Is(err, registry.ErrNotExist) {
		return fmt.Errorf("set the service's variables: %w", err)
	}
	return nil
}

// installed reports whether the service has this command line and these variables.
// If they cannot be read, as without the service, it has not.
func installed(config Config) bool {
	command, env, err := Settings()
	return err == nil && slices.Equal(command, config.Command) && slices.Equal(env, config.Env)
}

// outdatedValue is a value in the key of a service: when the process was started that may have
// other settings than the service, as Windows counts (record.Started). The time
// identifies the process, so that nobody has to delete the value.
const outdatedValue = "OutdatedProcess"

// outdate calls change, which changes the settings of the service. If the service runs, isOutdated is true from then on,
// also after an error of change, and for a process that was started meanwhile: it may have read the settings before.
func outdate(s *mgr.Service, change func() error) error {
	if err := markOutdated(s); err != nil {
		return err
	}
	return errors.Join(change(), markOutdated(s))
}

// markOutdated records the process of the service, if it runs, as one that may have former settings.
func markOutdated(s *mgr.Service) error {
	started, err := processStart(s)
	if err != nil || started == 0 {
		return err
	}
	key, err := registry.OpenKey(registry.LOCAL_MACHINE, servicesKey+s.Name, registry.SET_VALUE)
	if err == nil {
		defer key.Close() //nolint:errcheck // only releases a handle
		err = key.SetQWordValue(outdatedValue, uint64(started))
	}
	if err != nil {
		return fmt.Errorf("record that install changes the running service: %w", err)
	}
	return nil
}

// isOutdated reports whether an install has changed the settings of the service, or tried
// to, since its process was started. Another install may have changed them back.
func isOutdated(s *mgr.Service) (bool, error) {
	started, err := processStart(s)
	if err != nil || started == 0 {
		return false, err
	}
	key, err := registry.OpenKey(registry.LOCAL_MACHINE, servicesKey+s.Name, registry.QUERY_VALUE)
	if err != nil {
		return false, fmt.Errorf("read the service's configuration: %w", err)
	}
	defer key.Close() //nolint:errcheck // only releases a handle
	marked, _, err := key.GetIntegerValue(outdatedValue)
	if errors.Is(err, registry.ErrNotExist) {
		err = nil
	}
	return err == nil && marked == uint64(started), err
}

// processStart returns when the process of the service was started, as Windows counts; 0: it
// does not run.
func processStart(s *mgr.Service) (int64, error) {
	status, err := s.Query()
	if err != nil || status.ProcessId == 0 {
		return 0, err
	}
	p, err := openProcess(status.ProcessId, toLook)
	if errors.Is(err, windows.ERROR_INVALID_PARAMETER) { // it has ended meanwhile
		return 0, nil
	} else if err != nil {
		return 0, fmt.Errorf("look at the service's process %d: %w", status.ProcessId, err)
	}
	defer p.close()
	return p.Started, nil
}

// Settings returns the command line and the variables of the service. They may
// contain secrets.
func Settings() (command, env []string, err error) {
	commandLine, env, err := readSettings()
	if err != nil {
		return nil, nil, err
	}
	if command, err = windows.DecomposeCommandLine(commandLine); err != nil {
		return nil, nil, fmt.Errorf("parse the service's command line: %w", err)
	}
	return command, env, nil
}

// readSettings returns the command line as one text, and the variables.
func readSettings() (commandLine string, env []string, err error) {
	key, err := registry.OpenKey(registry.LOCAL_MACHINE, serviceKey, registry.QUERY_VALUE)
	if err != nil {
		return "", nil, fmt.Errorf("read the service's configuration: %w", err)
	}
	defer key.Close() //nolint:errcheck // only releases a handle
	commandLine, _, err = key.GetStringValue("ImagePath")
	env, _, envErr := key.GetStringsValue("Environment")
	if errors.Is(envErr, registry.ErrNotExist) {
		envErr = nil
	}
	if err = errors.Join(err, envErr); err != nil {
		return "", nil, fmt.Errorf("read the service's configuration: %w", err)
	}
	return commandLine, env, nil
}

// addEventSource registers the service as a source of events, unless it is one.
func addEventSource() error {
	if key, err := registry.OpenKey(registry.LOCAL_MACHINE, sourceKey, registry.QUERY_VALUE); err == nil {
		return key.Close()
	}
	// The message file of eventcreate.exe, which every Windows has, shows our
	// text as it is.
	if err := eventlog.InstallAsEventCreate(Name, eventlog.Error|eventlog.Warning|eventlog.Info); err != nil {
		return fmt.Errorf("add the source to the event log: %w", err)
	}
	return nil
}

// removeEventSource undoes addEventSource. A missing source is no error.
func removeEventSource() error {
	if err := eventlog.Remove(Name); err != nil && !errors.Is(err, registry.ErrNotExist) {
		return fmt.Errorf("remove the source from the event log: %w", err)
	}
	return nil
}
