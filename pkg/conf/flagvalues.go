package conf

import (
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"time"
)

// ParseBool parses a Boolean value.
func ParseBool(v string) (bool, error) {
	b, err := strconv.ParseBool(v)
	if err != nil {
		return false, fmt.Errorf("invalid Boolean %.60q; use true or false", v)
	}
	return b, nil
}

// parseInt parses an integer in the notations of Go's flag package: "10", "0x0a",
// "0b1010", "1_000". Of a number that is out of range even for 64 bits, ParseInt
// of strconv returns the nearest one, so that the error says above or below.
func parseInt(v string, least, most int) (int, error) {
	n, err := strconv.ParseInt(v, 0, 64)
	switch {
	case errors.Is(err, strconv.ErrSyntax):
		return 0, fmt.Errorf("invalid integer %.60q; use %d to %d", v, least, most)
	case n < int64(least):
		return 0, fmt.Errorf("%.60s is below %d; use %d to %d", v, least, least, most)
	case n > int64(most):
		return 0, fmt.Errorf("%.60s is above %d; use %d to %d", v, most, least, most)
	}
	return int(n), nil
}

// ParseAddress parses an IP address without a zone. An IPv4-mapped IPv6 address
// (::ffff:10.0.0.1) becomes the IPv4 address.
func ParseAddress(v string) (netip.Addr, error) {
	a, err := netip.ParseAddr(v)
	if err != nil || a.Zone() != "" {
		return netip.Addr{}, fmt.Errorf("invalid IP address %.60q", v)
	}
	return a.Unmap(), nil
}

// ParseNetwork parses a network and clears host bits.
func ParseNetwork(text string) (netip.Prefix, error) {
	p, err := netip.ParsePrefix(text)
	if err != nil {
		return p, fmt.Errorf("invalid network %.60q; use one like 10.96.0.0/12", text)
	}
	return p.Masked(), nil
}

// ListOf returns a function that parses a comma-separated list and appends its
// values. The flag may be repeated.
func ListOf[T any](all *[]T, parse func(string) (T, error)) func(string) error {
	return func(text string) error {
		for one := range strings.SplitSeq(text, ",") {
			v, err := parse(strings.TrimSpace(one))
			if err != nil {
				return err
			}
			*all = append(*all, v)
		}
		return nil
	}
}

// DurationLimit is a pflag.Value for a positive duration.
type DurationLimit time.Duration

// String returns "" for 0, which is no limit: then the help shows no default.
func (l *DurationLimit) String() string {
	if *l == 0 {
		return ""
	}
	return time.Duration(*l).String()
}

// Type implements pflag.Value.
func (l *DurationLimit) Type() string { return "DURATION" }

// Set implements pflag.Value.
func (l *DurationLimit) Set(text string) error {
	d, err := time.ParseDuration(text)
	if err != nil || d <= 0 {
		return errors.New("use a duration above 0, such as 90s or 5m")
	}
	*l = DurationLimit(d)
	return nil
}
