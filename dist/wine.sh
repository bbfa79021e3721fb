#!/bin/sh
# Creates bin/wine: a Wine whose HNS and IP stack are those of the simulated Windows machine (internal/test/hnstest/wine).
#
#   prefix        the Wine prefix, with our DLLs; nothing runs in it, so that it can be copied at any time
#   used          a copy, for make test-windows; other tests make copies of their own
#   overlay.json  for go build and go test: replaces files of the standard library that call what Wine lacks
#   run           runs a Windows program (go test -exec $PWD/bin/wine/run); FLANNEL_HNS is the address of the machine
#   test          the same for a test program; starts it once more if Wine has ended it
#
# `wine.sh stop [PREFIX]` ends the processes that Wine left running for a copy: used, or another one.
set -eu

here=$(cd "$(dirname "$0")/.." && pwd)
source=$here/internal/test/hnstest/wine/dll
wine=$here/bin/wine
cc=x86_64-w64-mingw32-gcc-win32
objdump=x86_64-w64-mingw32-objdump
library=$(cd "$here" && go env GOROOT)/src

wine_dlls=/usr/lib/x86_64-linux-gnu/wine/x86_64-windows
wine64=$(command -v wine64 || echo /usr/lib/wine/wine64)
wineserver=$(command -v wineserver || echo /usr/lib/wine/wineserver64)

export WINEPREFIX="$wine/prefix" WINEARCH=win64 WINEDEBUG=-all DISPLAY=
export WINEDLLOVERRIDES='mscoree,mshtml=;iphlpapi,dhcpcsvc,computenetwork,vmcompute,bcryptprimitives,hnetcfg,netprofm=n,b'

stop() { # prefix
	# It fails if no wineserver runs.
	WINEPREFIX=$1 "$wineserver" -k 2>/dev/null || true
	WINEPREFIX=$1 "$wineserver" -w
}

if [ "${1:-}" = stop ]; then
	stop "${2:-$wine/used}"
	exit
fi

dll() { # name, source, libraries
	name=$1 from=$2
	shift 2
	"$cc" -Wall -Wextra -Werror -O2 -s -shared -D_WIN32_WINNT=0x0A00 -o "$system32/new.dll" "$source/$from" "$@"
	# The existing file may be a link to Wine's own.
	mv -f "$system32/new.dll" "$system32/$name.dll"
}

# forward writes the list of exports of our iphlpapi.dll: its own functions, and forwards to Wine's for all others.
forward() {
	own=$(sed -n 's/^[A-Z]* WINAPI \([A-Z][A-Za-z0-9]*\)(.*/\1/p; s/^NOTIFY(\([A-Za-z0-9]*\),.*/\1/p' "$source/iphlpapi.c")
	echo 'LIBRARY iphlpapi.dll'
	echo EXPORTS
	"$objdump" -p "$1" | sed -n '/Ordinal\/Name Pointer/,/^$/p' | awk '/^\t\[/ { print $NF }' | sort -u |
		while read -r name; do
			echo "$own" | grep -qx "$name" || echo "  $name = iphlwine.$name"
		done
	echo "$own" | sed 's/^/  /'
}

# class makes a class of the Windows Firewall (HNetCfg.FwPolicy2, FwRule) belong to no apartment, as in Windows. Those of
# Wine belong to a single-threaded one, for which it would start a desktop.
class() {
	server="HKLM\\Software\\Classes\\CLSID\\{$1}\\InprocServer32"
	"$wine64" reg add "$server" /ve /d 'C:\windows\system32\hnetcfg.dll' /f &&
		"$wine64" reg add "$server" /v ThreadingModel /d Both /f
}

prefix() {
	stop "$wine/prefix" # of an attempt before
	stop "$wine/used"
	rm -rf "$wine"
	mkdir -p "$wine/prefix"
	{ "$wine64" wineboot -i && class E2B3C97F-6AE1-41AC-817A-F6F92166D7DD && class 2C5BC43E-3369-4C33-AB0C-BE9469677AF4 && patience; } >"$wine/wineboot.log" 2>&1
}

# patience gives a service ten minutes to start. Wine's ten seconds are too few for a busy machine.
patience() {
	"$wine64" reg add 'HKLM\System\CurrentControlSet\Control' /v ServicesPipeTimeout /d 600000 /f
}

# Sometimes, Wine does not start a program.
prefix || prefix || {
	tail -n 5 "$wine/wineboot.log" >&2
	echo "wine.sh: Wine cannot make a prefix; all of its output is in $wine/wineboot.log" >&2
	exit 1
}
"$wineserver" -k && "$wineserver" -w # otherwise it keeps running for a while
system32=$wine/prefix/drive_c/windows/system32

# Wine copies all of its DLLs, 600 MB; links are enough.
find "$wine/prefix/drive_c/windows" -type f -size +8k | while read -r file; do
	original=$wine_dlls/${file##*/}
	if cmp -s "$file" "$original"; then
		ln -sf "$original" "$file"
	fi
done

dll computenetwork hns.c -lws2_32 -lole32
cp "$system32/computenetwork.dll" "$system32/vmcompute.dll"
dll bcryptprimitives prng.c -ladvapi32
# Wine loads its own DLLs only by their original names. Without this mark, the copy is not recognized as one of them.
LC_ALL=C sed 's/Wine builtin DLL/................/' "$system32/iphlpapi.dll" >"$system32/iphlwine.dll"
forward "$system32/iphlwine.dll" >"$wine/iphlpapi.def"
dll iphlpapi iphlpapi.c "$wine/iphlpapi.def" -lws2_32
dll hnetcfg hnetcfg.c -Wno-unused-function -lws2_32 -lole32 -loleaut32 -luuid
dll netprofm netprofm.c -Wno-unused-function -lws2_32 -lole32 -luuid
dll dhcpcsvc dhcpcsvc.c -Wno-unused-function -lws2_32 -ladvapi32

# A process without a window would start a console (conhost.exe), which gets its handles. If the process is killed before
# the console has answered, Wine keeps the console, and so the process' log is open for ever. With an empty file, Wine goes
# on without a console. The file is removed first, because it may be a link to Wine's own.
rm "$system32/conhost.exe"
: >"$system32/conhost.exe"

cp -a "$wine/prefix" "$wine/used"

overlaid= # the entries of overlay.json
# overlay changes a file of Go's standard library, for tests only: file, what is changed, script of sed.
overlay() {
	original=$library/$1 changed=$wine/$(basename "$1" .go) # without .go: this is not a package of ours
	sed "$3" "$original" >"$changed"
	if cmp -s "$original" "$changed"; then
		echo "wine.sh: $2 of $(go version) differs from what this script expects ($original)" >&2
		exit 1
	fi
	overlaid="$overlaid${overlaid:+, }\"$original\": \"$changed\""
}

# To delete a file, Go (since 1.25) uses a call that Wine 8 answers with STATUS_NOT_IMPLEMENTED. That is not among the
# answers after which Go uses the older call, so it is added here.
overlay internal/syscall/windows/at_windows.go os.Remove \
	's/case STATUS_INVALID_INFO_CLASS,/case NTStatus(0xC0000002), STATUS_INVALID_INFO_CLASS,/'
# Wine answers ERROR_INTERNAL_ERROR if a new process ended before it ran its program. On a busy machine, that happens
# once in some ten thousand starts. Nothing of the program has run, so it can be started again. Only one process is started
# at a time: Wine gives it the connections of those that are being started beside it, too. Such a copy keeps the connection
# of an ended process open, so that Wine's server takes that one for alive, and whoever started it waits for ever.
overlay syscall/exec_windows.go os.StartProcess \
	's/err = CreateProcess(\(.*\))$/ForkLock.Lock()\n\t\tfor range 5 {\n\t\t\tif err = CreateProcess(\1); err != Errno(1359) {\n\t\t\t\tbreak\n\t\t\t}\n\t\t}\n\t\tForkLock.Unlock()/'
printf '{"Replace": {%s}}\n' "$overlaid" >"$wine/overlay.json"

cat >"$wine/run" <<END
#!/bin/sh
# WINEPREFIX may be another copy of the prefix beside this file.
here=\$(cd "\$(dirname "\$0")" && pwd)
export WINEPREFIX="\${WINEPREFIX:-\$here/used}" WINEARCH=$WINEARCH WINEDEBUG=$WINEDEBUG DISPLAY=
export WINEDLLOVERRIDES='$WINEDLLOVERRIDES'
# To preempt a goroutine, Go suspends its thread. On a busy machine, Wine's server sometimes never answers that, and both
# threads wait for ever.
export GODEBUG="\${GODEBUG:+\$GODEBUG,}asyncpreemptoff=1"
# Start Wine's background processes without our output, because whoever reads that waits until all writers have closed
# it.
{
	$wineserver -p60 # seconds without a program, before it ends: more than one takes to start on a busy machine
	$wine64 wineboot
} </dev/null >/dev/null 2>&1
exec $wine64 "\$@"
END

# Beside programs that start and kill others, a program under Wine ends with status 1 and without output once in some
# thousand starts, for an unknown reason. A test program that ends by itself prints PASS, FAIL or a panic.
cat >"$wine/test" <<'END'
#!/bin/sh
output=$(mktemp)
trap 'rm -f "$output"' EXIT
for attempt in first second; do
	status=0
	"$(dirname "$0")/run" "$@" >"$output" 2>&1 || status=$?
	if [ "$status" != 1 ] || [ -s "$output" ]; then
		break
	fi
	echo "wine: the $attempt run of $1 ended with status 1 and without output" >&2
done
cat "$output"
exit "$status"
END
chmod +x "$wine/run" "$wine/test"
