<#
.SYNOPSIS
Does what start.ps1 does with the parameters of the last run until it succeeds. The task flannel-node runs this when the
system starts, because the task scheduler does not treat an exit status as a failure. Output goes to flannel-node.log in
LogDir.
#>
[CmdletBinding()]
param([string]$BaseDir = 'C:\k')

$global:LASTEXITCODE = 1 # stays so if flanneld.exe cannot be run
& (Join-Path $BaseDir 'flanneld.exe') node start --retry "--base-dir=$($BaseDir.TrimEnd('\'))"
exit $LASTEXITCODE
