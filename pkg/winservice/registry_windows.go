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
	defer key.Close() //nolint:errcheck // it only frees
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

// installed tells whether the service has this command line and these variables; what cannot be read is not so.
func installed(config Config) bool {
	command, env, err := Settings()
	return err == nil && slices.Equal(command, config.Command) && slices.Equal(env, config.Env)
}

// Settings are the command line and the variables of the Windows service, secrets and all.
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
	defer key.Close() //nolint:errcheck // it only frees
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
	defer key.Close() //nolint:errcheck // it only frees
	command, _, err := key.GetStringValue("ImagePath")
	return command, err
}

func addEventSource() error {
	if key, err := registry.OpenKey(registry.LOCAL_MACHINE, sourceKey, registry.QUERY_VALUE); err == nil {
		return key.Close()
	}
	// eventcreate.exe, which every Windows has, brings messages whose text is what we say.
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
