package file

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"reflect"
	"regexp"
)

// UntrustedError means that a file, which decides what flanneld does to the host,
// belongs to somebody who is not an administrator. Only on Windows: the default
// permissions of Windows Server let every user create files in a directory below C:\,
// but change only the user's own ones. So the owner is compared, and not the
// permissions: if an administrator gave others the right to change a file, that was
// on purpose.
type UntrustedError struct {
	Path string
	SID  string // of the owner
	Name string // of the owner; "" if Windows does not know it, or not in time
	Err  error  // why the administrators could not be listed; nil: they were
}

func (e *UntrustedError) Error() string {
	owner := e.SID
	if e.Name != "" {
		owner = e.Name + " (" + e.SID + ")"
	}
	if e.Err != nil { // who may be an administrator
		return fmt.Sprintf("%s belongs to %s, and the members of the group Administrators cannot be listed (%v), which it takes to trust the file; try again", e.Path, owner, e.Err)
	}
	return fmt.Sprintf(`%s belongs to %s, not to an administrator, and is not used: delete it or, if its content is right, run both of: `+
		`icacls "%[1]s" /setowner *%[3]s; icacls "%[1]s" /inheritance:r /grant:r *%[4]s:F *%[3]s:F /remove:g *%[5]s`,
		e.Path, owner, sidAdministrators, sidSystem, e.SID)
}

// IsUnjudged reports whether an error is that nobody knows whether to trust a file: its owner may be an administrator.
func IsUnjudged(err error) bool {
	var u *UntrustedError
	return errors.As(err, &u) && u.Err != nil
}

// Unwrap returns why the administrators could not be listed.
func (e *UntrustedError) Unwrap() error { return e.Err }

// Security identifiers that are the same on every machine and in every language
// (https://learn.microsoft.com/windows-server/identity/ad-ds/manage/understand-security-identifiers).
const (
	sidSystem         = "S-1-5-18"
	sidAdministrators = "S-1-5-32-544"
	// sidContainerAdmin is ContainerAdministrator, the administrator of a container, to
	// whom the files belong that the container writes.
	sidContainerAdmin = "S-1-5-93-2-1"
	// sidInstaller is TrustedInstaller, the service that installs updates of Windows.
	sidInstaller = "S-1-5-80-956008885-3418522649-1831038044-1853292631-2271478464"
	// sidEveryone is the owner that Windows reports on volumes without owners: FAT,
	// exFAT, CDFS.
	sidEveryone = "S-1-1-0"
)

// sidOfAdministrator matches the account Administrator of a machine or a domain,
// which may have another name.
var sidOfAdministrator = regexp.MustCompile(`^S-1-5-21-\d+-\d+-\d+-500$`)

// trusted reports whether a file of this owner may decide what flanneld does. That is so if
// the owner is an administrator, the user of this process (user), or sidEveryone. All are
// SIDs. admins lists the members of the group Administrators; its error is returned if
// the owner may be a member.
func trusted(owner, user string, admins func() ([]string, error)) (bool, error) {
	switch owner {
	case sidSystem, sidAdministrators, sidContainerAdmin, sidInstaller, sidEveryone, user:
		return true, nil
	}
	if sidOfAdministrator.MatchString(owner) {
		return true, nil
	}
	members, err := admins()
	for _, member := range members {
		if member == owner {
			return true, nil
		}
	}
	return false, err
}

// OpenTrusted opens a file that decides what flanneld does to the host for reading.
// On Windows it fails with an UntrustedError if the owner is not an administrator.
// Files without an owner (sidEveryone), or whose owner Windows cannot read, are opened.
// The daemon asks OwnerUnknown for a directory of such files, to warn of it.
func OpenTrusted(path string) (*os.File, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	if err := checkOwner(f); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// ReadTrusted is os.ReadFile with OpenTrusted.
func ReadTrusted(path string) ([]byte, error) {
	f, err := OpenTrusted(path)
	if err != nil {
		return nil, err
	}
	defer f.Close() //nolint:errcheck // it was only read
	return io.ReadAll(f)
}

// maxJSON bounds the bytes that ReadJSON reads. No file of flanneld comes near it: hns.json with
// 10,000 routes of the host has 2 MB.
const maxJSON = 64 << 20

// errContent is wrapped by the errors of ReadJSON about what a file contains.
var errContent = errors.New("its content is not flanneld's")

// ReadJSON reads a file that PutJSON has written into v, if OpenTrusted opens it. After
// an error, v may have a part of the content.
func ReadJSON(path string, v any) error {
	f, err := OpenTrusted(path)
	if err != nil {
		return err
	}
	defer f.Close() //nolint:errcheck // it was only read
	raw, err := io.ReadAll(io.LimitReader(f, maxJSON+1))
	if err != nil {
		return err
	}
	if len(raw) > maxJSON {
		return fmt.Errorf("%w: it has more than %d bytes", errContent, maxJSON)
	}
	if err := json.Unmarshal(raw, v); err != nil {
		return fmt.Errorf("%w: %w", errContent, err)
	}
	return nil
}

// Unusable reports whether an error of ReadJSON says that somebody else owns the file, or
// that it contains something else than PutJSON wrote: to read the file again does not
// help. After any other error, nobody knows what the file contains, or whether its owner is
// an administrator (UntrustedError.Err), and the caller must not replace it.
func Unusable(err error) bool {
	e, refused := errors.AsType[*UntrustedError](err)
	return refused && e.Err == nil || errors.Is(err, errContent)
}

// setAside renames a file that is Unusable for a value of v's type to <path>.refused, where
// people find it. It is called by PutJSON, which then writes its own file to path. If the
// rename fails, PutJSON overwrites the refused file.
func setAside(path string, v any) {
	if Unusable(ReadJSON(path, reflect.New(reflect.TypeOf(v)).Interface())) {
		_ = os.Rename(path, path+".refused")
	}
}
