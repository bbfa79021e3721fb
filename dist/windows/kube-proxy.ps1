<#
.SYNOPSIS
Runs kube-proxy in the foreground, for a HostProcess container: with the source VIP that flanneld keeps, and again when that
has become another one. It ends when kube-proxy ends, or when flanneld is not ready in time; the container is then
started again.
#>
[CmdletBinding()]
param(
    [Parameter(Mandatory)] [string]$NetworkName,
    [Parameter(Mandatory)] [string]$KubeConfig,
    [string]$NodeName = $env:NODE_NAME,
    [string]$ClusterCIDR = '10.244.0.0/16',
    [string]$FeatureGates = '',
    [string]$Flanneld = (Join-Path $PSScriptRoot 'flanneld.exe'),
    [string]$KubeProxy = (Join-Path $PSScriptRoot 'kube-proxy.exe'),
    [int]$HealthPort = 8471,
    [int]$TimeoutMinutes = 15
)

Set-StrictMode -Version 2
$ErrorActionPreference = 'Stop'
Import-Module (Join-Path $PSScriptRoot 'flannel.psm1') -Force
if (-not $NodeName) { throw 'NODE_NAME is missing: the name of this node.' }

Wait-Flanneld $HealthPort $TimeoutMinutes { $true }
$env:KUBE_NETWORK = $NetworkName
$version = Get-KubernetesVersion $KubeProxy
do {
    $vip = Get-SourceVip $Flanneld
    $arguments = Get-KubeProxyArguments $vip $version $NetworkName $NodeName $KubeConfig $ClusterCIDR $FeatureGates
    Write-Step ('kube-proxy.exe ' + (Join-Arguments $arguments))
    $process = Start-Process -FilePath $KubeProxy -ArgumentList (Join-Arguments $arguments) -NoNewWindow -PassThru
    $null = $process.Handle # else its exit code is lost
    $stale = $false
    while (-not $stale -and -not $process.WaitForExit(10000)) {
        try {
            $stale = (Get-SourceVip $Flanneld | ConvertTo-Json) -ne ($vip | ConvertTo-Json)
        } catch {
            Write-Warning "$_" # flanneld may be starting
        }
    }
    if ($stale) {
        Write-Step 'the source VIP is another one now'
        Stop-Process -InputObject $process -Force
        $process.WaitForExit()
    }
} while ($stale)
exit $process.ExitCode
