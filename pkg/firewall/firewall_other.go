//go:build !linux

package firewall

import "context"

// Firewall does nothing on Windows, where HNS masquerades.
type Firewall struct{}

func New(Options) (*Firewall, error) { return &Firewall{}, nil }

func (f *Firewall) Apply(context.Context, Config) (int, error) { return 0, nil }

// Changes never receives.
func (f *Firewall) Changes() <-chan struct{} { return nil }

func (f *Firewall) Close() error { return nil }

// Cleanup finds nothing.
func Cleanup(context.Context, Options, bool) ([]string, error) { return nil, nil }
