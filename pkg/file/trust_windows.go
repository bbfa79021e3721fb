package file

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"
	"unsafe"

	"golang.org/x/sys/windows"
)

// protected gives SYSTEM and Administrators all rights to a directory and to what is
// in it, and nobody else, whatever the directory above it permits.
const protected = "D:P(A;OICI;FA;;;SY)(A;OICI;FA;;;BA)"

// MkdirAll creates a directory that only SYSTEM and administrators can access. Missing
// directories above it get the default permissions: other programs may use them, too.
// An existing directory stays as it is.
func MkdirAll(dir string) error {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return err
	}
	if info, err := os.Stat(dir); err == nil && info.IsDir() {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return err
	}
	descriptor, err := windows.SecurityDescriptorFromString(protected)
	if err != nil {
		return fmt.Errorf("create %s: %w", dir, err)
	}
	attributes := &windows.SecurityAttributes{SecurityDescriptor: descriptor}
	attributes.Length = uint32(unsafe.Sizeof(*attributes))
	name, err := windows.UTF16PtrFromString(longPath(dir))
	if err == nil {
		err = windows.CreateDirectory(name, attributes)
	}
	if err != nil && !errors.Is(err, windows.ERROR_ALREADY_EXISTS) {
		return fmt.Errorf("create %s: %w", dir, err)
	}
	return os.MkdirAll(dir, 0o755) // an error if a file has the name
}

// longPath returns the form of an absolute path in which it may have more than 247
// characters (https://learn.microsoft.com/windows/win32/fileio/maximum-file-path-limitation).
func longPath(path string) string {
	switch {
	case len(path) < 248 || strings.HasPrefix(path, `\\?\`):
		return path
	case strings.HasPrefix(path, `\\`):
		return `\\?\UNC` + path[1:]
	}
	return `\\?\` + path
}

// checkOwner returns an UntrustedError if the file belongs to somebody who is not an
// administrator.
func checkOwner(f *os.File) error {
	owner, err := ownerOf(windows.Handle(f.Fd()))
	if err != nil {
		return nil // unknown: see OwnerUnknown
	}
	user, err := windows.GetCurrentProcessToken().GetTokenUser()
	if err != nil {
		return fmt.Errorf("find out the user of this process: %w", err)
	}
	ok, err := trusted(owner.String(), user.User.Sid.String(), administrators)
	if ok {
		return nil
	}
	return &UntrustedError{Path: f.Name(), SID: owner.String(), Name: nameOf(owner), Err: err}
}

// ownerOf returns the owner of an open file or directory.
func ownerOf(h windows.Handle) (*windows.SID, error) {
	descriptor, err := windows.GetSecurityInfo(h, windows.SE_FILE_OBJECT, windows.OWNER_SECURITY_INFORMATION)
	if err != nil {
		return nil, err
	}
	owner, _, err := descriptor.Owner()
	if err == nil && owner == nil {
		err = errors.New("it has no owner")
	}
	return owner, err
}

// OwnerUnknown returns why the owners of files in a directory cannot be checked, nil
// if they can.
func OwnerUnknown(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer f.Close() //nolint:errcheck // it was only read
	owner, err := ownerOf(windows.Handle(f.Fd()))
	if err == nil && owner.String() == sidEveryone {
		err = errors.New("its volume has no owners, like FAT")
	}
	return err
}

// nameWithin bounds the lookup of an account's name, for which Windows may ask a
// domain controller that cannot be reached at the moment.
const nameWithin = time.Second

// nameOf returns DOMAIN\user, "" if Windows does not know the name, or not in time.
func nameOf(sid *windows.SID) string {
	found := make(chan string, 1) // with room: after nameWithin, nobody receives
	go func() {
		account, domain, _, err := sid.LookupAccount("")
		if err != nil {
			account, domain = "", ""
		}
		found <- strings.TrimPrefix(domain+`\`+account, `\`)
	}()
	select {
	case name := <-found:
		return name
	case <-time.After(nameWithin):
		return ""
	}
}

// procMembers is
// https://learn.microsoft.com/windows/win32/api/lmaccess/nf-lmaccess-netlocalgroupgetmembers.
var procMembers = windows.NewLazySystemDLL("netapi32.dll").NewProc("NetLocalGroupGetMembers")

// administrators returns the SIDs of the direct members of the group Administrators.
// It does not ask a domain controller for the members of groups in it.
func administrators() (sids []string, err error) {
	group, err := windows.StringToSid(sidAdministrators)
	if err != nil {
		return nil, err
	}
	name, _, _, err := group.LookupAccount("") // it depends on the language of Windows
	if err != nil {
		return nil, err
	}
	text, err := windows.UTF16PtrFromString(name)
	if err != nil {
		return nil, err
	}
	if err := procMembers.Find(); err != nil {
		return nil, err
	}
	var members **windows.SID // LOCALGROUP_MEMBERS_INFO_0 is a pointer to a SID
	var read, total uint32
	const unlimited = 0xffffffff
	// The zeros: this machine; the level of the information, SIDs alone; and no call to resume.
	status, _, _ := procMembers.Call(0, uintptr(unsafe.Pointer(text)), 0, uintptr(unsafe.Pointer(&members)), unlimited,
		uintptr(unsafe.Pointer(&read)), uintptr(unsafe.Pointer(&total)), 0)
	if status != 0 {
		return nil, fmt.Errorf("NetLocalGroupGetMembers: status %d", status)
	}
	for _, member := range unsafe.Slice(members, read) {
		sids = append(sids, member.String())
	}
	return sids, windows.NetApiBufferFree((*byte)(unsafe.Pointer(members)))
}
