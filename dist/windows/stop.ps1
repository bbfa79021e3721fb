<#
.SYNOPSIS
Stops what start.ps1 started, and the service flanneld, if "flanneld service install" created it (as install-services.ps1
does). Services that others installed run on. The network stays as it is, and pods keep their connections; start.ps1
starts again.
#>
[CmdletBinding()]
param([string]$BaseDir = 'C:\k')

$global:LASTEXITCODE = 1 # stays so if flanneld.exe cannot be run
& (Join-Path $BaseDir 'flanneld.exe') node stop "--base-dir=$($BaseDir.TrimEnd('\'))"
exit $LASTEXITCODE
