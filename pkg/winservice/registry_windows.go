package winservice

import (
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sys/windows"
	"golang.org/x/sys/windows/registry"
	"golang.org/x/sys/windows/svc/eventlog"
)

// Keys of HKEY_LOCAL_MACHINE.
const (
	serviceKey = `SYSTEM\CurrentControlSet\Services\` + Name
	sourceKey  = `SYSTEM\CurrentControlSet\Services\EventLog\Application\` + Name
)

func setEnvironment(env []string) error {
	key, err := registry.OpenKey(registry.LOCAL_MACHINE, serviceKey, registry.SET_VALUE)
	if err != nil {
		return fmt.Errorf("set the service's variables: %w", err)
	}
	defer key.Close() //nolint:errcheck // only releases a handle
	if len(env) > 0 {
		err = key.SetStringsValue("Environment", env)
	} else if err = key.DeleteValue("Environment"); errors.Is(err, registry.ErrNotExist) {
		err = nil
	}
	if err != nil {
		return fmt.Errorf("set the service's variables: %w", err)
	}
	return nil
}

// installed reports whether the service has this command line and these variables.
// If they cannot be read, it has not.
func installed(config Config) bool {
	command, env, err := Settings()
	return err == nil && slices.Equal(command, config.Command) && slices.Equal(env, config.Env)
}

// Settings returns the command line and the variables of the service. They may
// contain secrets.
func Settings() (command, env []string, err error) {
	line, err := readCommand()
	if err != nil {
		return nil, nil, err
	}
	if command, err = windows.DecomposeCommandLine(line); err != nil {
		return nil, nil, fmt.Errorf("read the service's command line: %w", err)
	}
	key, err := registry.OpenKey(registry.LOCAL_MACHINE, serviceKey, registry.QUERY_VALUE)
	if err != nil {
		return nil, nil, fmt.Errorf("read the service's variables: %w", err)
	}
	defer key.Close() //nolint:errcheck // only releases a handle
	env, _, err = key.GetStringsValue("Environment")
	if err != nil && !errors.Is(err, registry.ErrNotExist) {
		return nil, nil, fmt.Errorf("read the service's variables: %w", err)
	}
	return command, env, nil
}

func readCommand() (string, error) {
	key, err := registry.OpenKey(registry.LOCAL_MACHINE, serviceKey, registry.QUERY_VALUE)
	if err != nil {
		return "", err
	}
	defer key.Close() //nolint:errcheck // only releases a handle
	command, _, err := key.GetStringValue("ImagePath")
	return command, err
}

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

func removeEventSource() error {
	if err := eventlog.Remove(Name); err != nil && !errors.Is(err, registry.ErrNotExist) {
		return fmt.Errorf("remove the source from the event log: %w", err)
	}
	return nil
}
