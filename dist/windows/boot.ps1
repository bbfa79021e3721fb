<#
.SYNOPSIS
Runs start.ps1 with the parameters of the last run until it succeeds. The task flannel-node runs this when the system
starts, because the task scheduler does not treat an exit status as a failure. Output goes to flannel-node.log in
LogDir.
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
        Write-Step "failed, will retry in a minute: $_"
        Start-Sleep -Seconds 60
    }
}
