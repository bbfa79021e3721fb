<#
.SYNOPSIS
Stops what start.ps1 started, in reverse order, and the service flanneld, also one that "flanneld service install"
created. The network stays as it is, and pods keep their connections; start.ps1 starts again.
#>
[CmdletBinding()]
param([string]$BaseDir = 'C:\k')

$global:LASTEXITCODE = 1 # stays so if flanneld.exe cannot be run
& (Join-Path $BaseDir 'flanneld.exe') node stop "--base-dir=$($BaseDir.TrimEnd('\'))"
exit $LASTEXITCODE
