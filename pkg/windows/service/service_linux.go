package service

import (
	"context"
	"errors"
	"io"
	"time"
)

// Started reports false: only Windows has the service manager.
func Started([]string) bool { return false }

// Run is only supported on Windows.
func Run(time.Duration, func(context.Context) int) (int, error) { return 0, errors.ErrUnsupported }

// Settings is only supported on Windows.
func Settings() (command, env []string, err error) { return nil, nil, errors.ErrUnsupported }

// RequireAdministrator is only supported on Windows.
func RequireAdministrator() error { return errors.ErrUnsupported }

// Start is only supported on Windows.
func (Components) Start(context.Context, Component, bool) error { return errors.ErrUnsupported }

// Stop is only supported on Windows.
func (Components) Stop(context.Context, string) error { return errors.ErrUnsupported }

// Running is only supported on Windows.
func (Components) Running(string) (bool, error) { return false, errors.ErrUnsupported }

// HasService is only supported on Windows.
func (Components) HasService(string) (bool, error) { return false, errors.ErrUnsupported }

// Record is only supported on Windows.
func (Components) Record(string) error { return errors.ErrUnsupported }

// RemoveService is only supported on Windows.
func (Components) RemoveService(string) error { return errors.ErrUnsupported }

// Control is only supported on Windows.
func Control(context.Context, string, Config, io.Writer) error {
	return errors.New("service: only supported on Windows; on Linux, systemd runs flanneld, see dist/flanneld.service")
}
