<#
.SYNOPSIS
Runs start.ps1, with the parameters of the last time, until it works: so does the task flannel-node when the system starts,
since the task scheduler takes no exit status for a failure. What is said is in flannel-node.log, in LogDir.
#>
[CmdletBinding()]
param([string]$BaseDir = 'C:\k')

Set-StrictMode -Version 2
$ErrorActionPreference = 'Stop'
Import-Module (Join-Path $PSScriptRoot 'flannel.psm1') -Force
$settings = Read-Settings (Join-Path $BaseDir 'flannel-node.json')
$null = Start-Transcript -LiteralPath (Join-Path $settings['LogDir'] 'flannel-node.log') -Force
while ($true) {
    try {
        & (Join-Path $PSScriptRoot 'start.ps1') -BaseDir $BaseDir
        break
    } catch {
        Write-Step "once more in a minute: $_"
        Start-Sleep -Seconds 60
    }
}
